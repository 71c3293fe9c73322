"""Upkeep of the event log: state cache, history, retention, verification."""
