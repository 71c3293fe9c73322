"""The stream server: logs, events, terminals and files over websockets, on Unix sockets and on loopback TCP."""
