"""Attachment to a process: its output and input, signals, and our own terminal."""
