"""A double of a Kubernetes cluster: API server, kubelet and controllers in one process, with real containers."""
