"""Contract of providers: the protocol that each fills in, and types shared with the keeper."""
