"""Parts shared by the servers: accept loops, parameter decoding, per-connection limits, memory accounting, defects."""
