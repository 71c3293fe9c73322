"""Stores of lock documents: small documents with compare-and-swap.

A lock is one document, ``sandboxes/<name>/lock.json``. Two daemons agree through the order of its versions, so a store
has to keep one promise: **of all writers over the same version, one succeeds.** `rules` decides the content and who may
write it, `lease` carries that out, and `fence` guards documents written under a lock, which may be in the same store.

Lifecycle of a document::

    found = store.read(path_of("box"))             # None: there is none
    written = store.write(path_of("box"), b"…", None)   # only if there is still none
    if written is None:                            # another writer was first: read again
        …
    store.write(path_of("box"), b"…", written.version)  # only over that very version

Everything blocks, and may be called from several threads at once. An unreachable store, or an unexpected answer, raises
`provider_unavailable`; the write may have been carried out all the same, and the writer finds out by reading.
"""

from typing import Final, NamedTuple, Protocol

from sandkeep.ids import check_name

MAX_DOCUMENT_BYTES: Final = 64 * 1024
"""Of a longer document no more is read: it is damaged."""


class Stored(NamedTuple):
    """A document and its version. Of one longer than was asked for there is one byte more than that."""

    content: bytes
    version: str


class Written(NamedTuple):
    """The result of a successful write: the version, and the time in seconds since 1970 by the store's own clock."""

    version: str
    time: float


class DocumentStore(Protocol):
    """See the module. Paths are relative, of names that were checked. `where` is the display name of the store:
    ``gs://BUCKET``, or a directory.
    """

    where: str

    def read(self, path: str, most: int = MAX_DOCUMENT_BYTES) -> Stored | None:
        """Read a document of up to `most` bytes; None when there is none.

        Raises `provider_unavailable`, and `lock_damaged` if it is no regular file.
        """
        ...

    def write(self, path: str, content: bytes, over: str | None) -> Written | None:
        """Write a document over the version `over`, or, with None, where none is; durable when it returns.

        None when another version is there, and nothing was written: also when an earlier attempt of the same write
        succeeded and its answer was lost. Raises `provider_unavailable`.
        """
        ...


def path_of(name: str) -> str:
    """Return the path of a lock's document. Raises `invalid` for a malformed name, as it may be untrusted."""
    return f"sandboxes/{check_name(name, 'name')}/lock.json"
