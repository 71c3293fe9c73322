"""The back ends that isolate: one file each, none knows another."""
