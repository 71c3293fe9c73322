"""Durable state: the event log, its views, archives and locks."""
