"""The Modal provider."""
