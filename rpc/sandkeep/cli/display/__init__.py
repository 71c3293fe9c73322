"""Display of answers: tables, timelines, progress, Prometheus text."""
