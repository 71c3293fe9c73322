"""The vocabulary of Kubernetes resources that the daemon and its clients share. Nothing here does I/O."""
