"""Local provider: sandboxes by bubblewrap over copy-on-write directories."""
