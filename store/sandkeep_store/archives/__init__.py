"""Archives: where the bytes of snapshots and checkpoints lie. `opening.open_store` gives the store of a place."""
