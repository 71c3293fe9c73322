"""Where locks are kept, as settings and events name it, and the store that is there."""

from typing import Final

from sandkeep_store.config import Root
from sandkeep_store.locks.base import DocumentStore
from sandkeep_store.locks.directory import DirectoryStore
from sandkeep_store.locks.gcs import GcsStore
from sandkeep_store.locks.s3 import S3Store

_SCHEMES: Final = {"gcs": "gs://", "s3": "s3://"}


def where(root: Root) -> str:
    """The name of a place of locks: ``gs://BUCKET``, ``s3://BUCKET``, or an absolute directory."""
    return f"{_SCHEMES.get(root.where, '')}{root.base}"


def open_store(where: str) -> DocumentStore:
    """The store of that name. It is not looked at before it is used."""
    if where.startswith(_SCHEMES["gcs"]):
        return GcsStore(where.removeprefix(_SCHEMES["gcs"]))
    if where.startswith(_SCHEMES["s3"]):
        return S3Store(where.removeprefix(_SCHEMES["s3"]))
    return DirectoryStore(where)
