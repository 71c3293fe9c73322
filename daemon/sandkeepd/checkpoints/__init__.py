"""Checkpoints, and time travel over checkpoints and snapshots."""
