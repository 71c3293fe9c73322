"""gVisor provider: sandboxes in `runsc`, with checkpoints of memory."""
