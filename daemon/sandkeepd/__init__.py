"""The daemon: providers, sandboxes, processes and their servers."""
