"""Folds: the effect of each event on the state, one module for each noun. Importing them registers them."""

from sandkeep_store.views.folds import checkpoints, daemon, images, locks, log, processes, sandboxes, snapshots

__all__ = ["checkpoints", "daemon", "images", "locks", "log", "processes", "sandboxes", "snapshots"]
