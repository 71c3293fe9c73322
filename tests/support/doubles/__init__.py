"""Shared parts of doubles of services: their process, faults, and processes in containers."""
