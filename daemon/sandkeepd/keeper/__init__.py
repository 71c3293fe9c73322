"""The keeper inside a sandbox, and the daemon's side of it: requests in, answers and journals out."""
