"""Host uids of local sandboxes: the machine-wide registry, claims, and the processes of a uid."""
