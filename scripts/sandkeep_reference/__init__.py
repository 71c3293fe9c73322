"""The reference in `docs/reference`, written from the tables of the code: a tool for developers."""
