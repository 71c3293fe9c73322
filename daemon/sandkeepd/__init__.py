"""What runs: providers, sandboxes, processes and the servers that answer for them."""
