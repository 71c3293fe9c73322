"""A double of Modal's service for its SDK: control plane and task command router, with sandboxes that really run."""
