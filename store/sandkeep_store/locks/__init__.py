"""Locks: leases on sandboxes that several daemons share, each acquisition with a fencing number that grows."""
