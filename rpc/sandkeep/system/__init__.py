"""System: durable files, confined programs, fresh threads, backoff; what clients, store and daemon need of the machine."""
