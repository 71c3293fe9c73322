"""Locks on shared sandboxes: handlers, leases, and published metadata."""
