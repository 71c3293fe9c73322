"""Event log: append, read, follow, fold; one SQLite file with a witness beside it."""
