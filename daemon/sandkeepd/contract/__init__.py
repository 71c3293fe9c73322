"""Contract of providers: the protocol that each implements, and types shared with the keeper."""
