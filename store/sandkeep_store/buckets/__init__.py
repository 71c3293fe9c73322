"""Buckets: storage settings, and the clients of GCS and S3."""
