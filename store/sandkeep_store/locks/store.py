"""Where locks are kept: a store of small documents, each of which is only ever written over the one that was read.

A lock is one document, ``sandboxes/<name>/lock.json``. All that two daemons need to agree on is in the order of its
versions, so a store has to keep one promise: **of all who write over the same version, one succeeds.** What the
document says, and who may write what when, is decided in `rules`; `lease` carries it out, and `fence` guards what is
written under a lock, which may be a document of the same store.

Lifecycle of a document::

    found = store.read(path_of("box"))             # None: there is none
    written = store.write(path_of("box"), b"…", None)   # only if there is still none
    if written is None:                            # somebody else was quicker: read again
        …
    store.write(path_of("box"), b"…", written.version)  # only over that very version

Everything blocks, and may be called from several threads at once. A store that cannot be reached, or answers what it
should not, raises `provider_unavailable`; the write may have been carried out all the same, and whoever wrote finds out
by reading.
"""

from typing import Final, NamedTuple, Protocol

from sandkeep.ids import check_name

MAX_DOCUMENT_BYTES: Final = 64 * 1024
"""Of a longer document no more is read: it is damaged."""


class Stored(NamedTuple):
    """A document as it was read, and the version that it is. Of one longer than was asked for there is one byte more
    than that.
    """

    content: bytes
    version: str


class Written(NamedTuple):
    """What a write that succeeded made: the version, and the time in seconds since 1970 by the store's own clock."""

    version: str
    time: float


class DocumentStore(Protocol):
    """See the module. Paths are relative, of names that were checked. `where` is what people call the store:
    ``gs://BUCKET``, or a directory.
    """

    where: str

    def read(self, path: str, most: int = MAX_DOCUMENT_BYTES) -> Stored | None:
        """A document of up to `most` bytes; None when there is none.

        Raises `provider_unavailable`, and `lock_damaged` for what is no plain file.
        """
        ...

    def write(self, path: str, content: bytes, over: str | None) -> Written | None:
        """Write a document over the version `over`, or, with None, where none is; durable when it returns.

        None when another version is there, and nothing was written: also when an earlier attempt of the same write
        succeeded and its answer was lost. Raises `provider_unavailable`.
        """
        ...


def path_of(name: str) -> str:
    """The path of a lock's document. Raises `invalid` for what is no name: it may come from anywhere."""
    return f"sandboxes/{check_name(name, 'name')}/lock.json"
