"""Where locks are kept, as settings and events name it, and the store that is there."""

from sandkeep_store.config import Root
from sandkeep_store.locks.base import DocumentStore
from sandkeep_store.locks.directory import DirectoryStore
from sandkeep_store.locks.gcs import GcsStore

_GCS = "gs://"


def where(root: Root) -> str:
    """The name of a place of locks: ``gs://BUCKET``, or an absolute directory."""
    return f"{_GCS}{root.base}" if root.where == "gcs" else root.base


def open_store(where: str) -> DocumentStore:
    """The store of that name. It is not looked at before it is used."""
    return GcsStore(where.removeprefix(_GCS)) if where.startswith(_GCS) else DirectoryStore(where)
