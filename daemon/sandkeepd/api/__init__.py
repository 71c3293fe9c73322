"""The socket: who is there, what they ask, and what they are answered."""
