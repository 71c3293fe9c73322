"""The host: control groups, mounts, uids, processes, and paths that callers name."""
