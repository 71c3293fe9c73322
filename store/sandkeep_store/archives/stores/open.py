"""The store of a root. SDKs are imported here, when a bucket is first used."""

from sandkeep_store.archives.stores.directory import DirectoryArchives
from sandkeep_store.archives.stores.retry import PATIENCE_S
from sandkeep_store.archives.stores.store import ArchiveStore
from sandkeep_store.buckets.config import STORAGE, Root, Storage
from sandkeep_store.buckets.sdks import require_sdk


def open_store(root: Root, storage: Storage = STORAGE, patience_s: float = PATIENCE_S) -> ArchiveStore:
    """Return the store of a root. `patience_s` limits retries without progress.

    The store may be cached and used by many threads. Raises `not_configured` if credentials are missing,
    `not_supported` if the SDK is.
    """
    require_sdk(root)
    if root.where == "gcs":
        from sandkeep_store.archives.stores.gcs import GcsArchives

        return GcsArchives(root, storage, patience_s)
    if root.where == "s3":
        from sandkeep_store.archives.stores.s3 import S3Archives

        return S3Archives(root, storage, patience_s)
    return DirectoryArchives(root)
