"""Upkeep of the log's files: state cache, compaction, redaction, repair, salvage."""
