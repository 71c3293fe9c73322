"""Clients of the API: on trio, and the parts common to all clients."""
