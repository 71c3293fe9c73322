"""Branches: sandboxes with a common base, which are compared, merged and committed to the host."""
