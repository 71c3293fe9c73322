"""The connection that each call makes, and what all calls on processes share."""

import codecs
import io
from collections.abc import Generator

from sandkeep.blocking import Client, connect
from sandkeep.model import Process


def daemon() -> Client:
    """Connect to the daemon that ``SANDKEEP_SOCKET`` names."""
    return connect(client="crafty")


def kill(client: Client, sandbox_id: str, name: str) -> None:
    """Kill a process with all of its group, and return when that is on record."""
    killed: Process = client.process.signal(sandbox_id, name, signal="KILL")
    client.process.wait(sandbox_id, killed.process_id)


def text_of(client: Client, sandbox_id: str, name: str) -> Generator[str, None, None]:
    """Both streams of a process as text. A character that is written in two pieces is one character."""
    utf8 = codecs.getincrementaldecoder("utf-8")
    out, err = (io.IncrementalNewlineDecoder(utf8(errors="replace"), translate=True) for _ in range(2))
    for piece in client.read_output(sandbox_id, name):
        text = out.decode(piece.stdout, final=piece.ended) + err.decode(piece.stderr, final=piece.ended)
        if text:
            yield text
