"""Folds: the effect of each event on the state, one module for each noun. Importing them registers them."""

from sandkeep_store.views.folds import (
    artifacts,
    branches,
    checkpoints,
    daemon,
    images,
    locks,
    log,
    processes,
    sandboxes,
    sessions,
    snapshots,
    volumes,
)

__all__ = [
    "artifacts",
    "branches",
    "checkpoints",
    "daemon",
    "images",
    "locks",
    "log",
    "processes",
    "sandboxes",
    "sessions",
    "snapshots",
    "volumes",
]
