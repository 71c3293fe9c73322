"""Clients of the API: on trio, and what both clients share."""
