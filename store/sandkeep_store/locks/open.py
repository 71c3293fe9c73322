"""Places of locks, as settings and events name them, and the store that is at each."""

from collections.abc import Callable
from typing import Final

from sandkeep_store.buckets.config import Root, Where
from sandkeep_store.buckets.sdks import require_sdk
from sandkeep_store.locks.directory import DirectoryStore
from sandkeep_store.locks.gcs import GcsStore
from sandkeep_store.locks.places import split
from sandkeep_store.locks.s3 import S3Store
from sandkeep_store.locks.store import MAX_DOCUMENT_BYTES, DocumentStore, Stored, Written

_SCHEMES: Final[dict[Where, str]] = {"gcs": "gs://", "s3": "s3://"}
_BUCKETS: Final[dict[Where, Callable[[str], DocumentStore]]] = {"gcs": GcsStore, "s3": S3Store}


class OwnerStore:
    """The part of a store that belongs to one owner. See `DocumentStore`."""

    def __init__(self, store: DocumentStore, name: str) -> None:
        self.where = f"{store.where}/{name}"
        self._store = store
        self._name = name

    def read(self, path: str, most: int = MAX_DOCUMENT_BYTES) -> Stored | None:
        """See `DocumentStore.read`."""
        return self._store.read(f"{self._name}/{path}", most)

    def write(self, path: str, content: bytes, over: str | None) -> Written | None:
        """See `DocumentStore.write`."""
        return self._store.write(f"{self._name}/{path}", content, over)


def where(root: Root) -> str:
    """The name of a place of locks: ``gs://BUCKET``, ``s3://BUCKET``, or an absolute directory."""
    return f"{_SCHEMES.get(root.where, '')}{root.base}"


def open_owner_store(where: str, open_whole: Callable[[str], DocumentStore]) -> DocumentStore:
    """The store of that name. `open_whole` opens one that is nobody's own."""
    whole, part = split(where)
    return OwnerStore(open_whole(whole), part) if part else open_whole(whole)


def open_store(where: str) -> DocumentStore:
    """Return the store of that name, which is no owner's part. Raises `not_supported` where its SDK is missing."""
    for kind, store in _BUCKETS.items():
        if where.startswith(_SCHEMES[kind]):
            bucket = where.removeprefix(_SCHEMES[kind])
            require_sdk(Root(kind, bucket))
            return store(bucket)
    return DirectoryStore(where)
