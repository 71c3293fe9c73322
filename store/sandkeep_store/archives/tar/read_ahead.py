"""Read-ahead in a thread, so that decompression and member parsing overlap."""

import threading
from collections.abc import Generator, Iterator
from queue import Queue
from typing import Final

_AHEAD: Final = 4
"""So many chunks lie ready at most."""


def read_ahead(chunks: Iterator[bytes]) -> Generator[bytes, None, None]:
    """Yield the chunks, produced by a thread that ends with the last chunk or when the generator is closed.

    An exception in the thread is raised here.
    """
    ready: Queue[bytes | BaseException] = Queue(_AHEAD)
    wanted = threading.Event()
    wanted.set()

    def work() -> None:
        try:
            for chunk in chunks:
                ready.put(chunk)
                if not wanted.is_set():
                    return
            ready.put(b"")
        except BaseException as failure:  # noqa: BLE001 - it is raised again
            ready.put(failure)

    thread = threading.Thread(target=work, name="sandkeep-ahead", daemon=True)
    thread.start()
    try:
        while chunk := ready.get():
            if isinstance(chunk, BaseException):
                raise chunk
            yield chunk
    finally:
        wanted.clear()
        while thread.is_alive():
            _take_rest(ready)
            thread.join(0.01)


def _take_rest(ready: "Queue[bytes | BaseException]") -> None:
    while not ready.empty():
        ready.get()
