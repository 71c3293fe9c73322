"""Composition root: start-up, recovery, systemd, and the table of handlers."""
