"""Connection to the daemon's socket, for clients that block."""

from _socket import AF_UNIX, SOCK_STREAM, socket  # wrapped by the socket module, whose import takes 3 ms

from sandkeep.clients.dial import cannot_connect


def dial(path: str) -> socket:
    """Connect to the Unix socket `path`; the caller closes it. Raises as `blocking.connect` does."""
    sock = socket(AF_UNIX, SOCK_STREAM)
    try:
        sock.connect(path)
    except OSError as error:
        sock.close()
        raise cannot_connect(path, error) from None
    except BaseException:
        sock.close()
        raise
    return sock
