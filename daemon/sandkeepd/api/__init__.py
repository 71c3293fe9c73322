"""The socket: connections, their requests, and the answers."""
