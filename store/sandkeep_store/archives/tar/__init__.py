"""Tar format: headers, members, compression; read, written and inspected as streams."""
