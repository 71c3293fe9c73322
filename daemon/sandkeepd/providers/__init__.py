"""The back ends that isolate: one package each, independent of each other."""
