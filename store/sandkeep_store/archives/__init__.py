"""Archives: where the bytes of snapshots and checkpoints lie. `stores.open.open_store` gives the store of a place."""
