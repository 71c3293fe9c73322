"""State computed from events: what all reads are answered from."""
