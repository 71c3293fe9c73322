"""Control groups, v1 and v2: limits, placement, the freezer, and usage."""
