"""Sandboxes, their images, processes, files and terminals."""
