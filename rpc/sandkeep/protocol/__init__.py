"""Wire protocol without I/O: the table of methods, JSON-RPC, frames, ids, clocks; websocket and TLS framing."""
