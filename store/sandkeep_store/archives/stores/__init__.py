"""Stores of archives: a directory, GCS, S3, memory; behind one interface."""
