"""Core of the daemon: the log and its state, rules, access, retries, and the call that a handler answers."""
