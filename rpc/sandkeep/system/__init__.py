"""System: durable files, confined programs, fresh threads, backoff; shared by clients, store and daemon."""
