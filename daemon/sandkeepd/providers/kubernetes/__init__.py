"""The Kubernetes provider."""
