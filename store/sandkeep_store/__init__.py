"""What lasts: the event log, the views made from it, archives and locks."""
