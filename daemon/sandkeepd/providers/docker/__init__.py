"""Docker provider: sandboxes as containers of a local engine."""
