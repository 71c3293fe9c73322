"""Snapshots: archives, forks, restore, transfer, retention and garbage collection."""
