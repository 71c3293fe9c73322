"""What doubles of services share: their process, faults, and processes in containers."""
