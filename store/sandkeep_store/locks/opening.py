"""Where locks are kept, as settings and events name it, and the store that is there."""

from typing import Final

from sandkeep_store.config import Root
from sandkeep_store.locks.base import DocumentStore
from sandkeep_store.locks.directory import DirectoryStore
from sandkeep_store.locks.gcs import GcsStore
from sandkeep_store.locks.s3 import S3Store
from sandkeep_store.sdks import require_sdk

_SCHEMES: Final = {"gcs": "gs://", "s3": "s3://"}


def where(root: Root) -> str:
    """The name of a place of locks: ``gs://BUCKET``, ``s3://BUCKET``, or an absolute directory."""
    return f"{_SCHEMES.get(root.where, '')}{root.base}"


def open_store(where: str) -> DocumentStore:
    """The store of that name. It is looked at when it is used. Raises `not_supported` where its SDK is missing."""
    root = _root_of(where)
    require_sdk(root)
    match root.where:
        case "gcs":
            return GcsStore(root.base)
        case "s3":
            return S3Store(root.base)
        case _:
            return DirectoryStore(root.base)


def _root_of(where: str) -> Root:
    if where.startswith(_SCHEMES["gcs"]):
        return Root("gcs", where.removeprefix(_SCHEMES["gcs"]))
    if where.startswith(_SCHEMES["s3"]):
        return Root("s3", where.removeprefix(_SCHEMES["s3"]))
    return Root("mount", where)
