"""Sandboxes that daemons on several machines share, one at a time: created, attached, handed over, detached."""
