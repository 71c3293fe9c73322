"""Check that the SDK of a bucket is installed, without importing it: the import takes a second."""

from sandkeep.system import extras
from sandkeep_store.buckets.config import Root


def require_sdk(root: Root) -> None:
    """Raise `not_supported` for a bucket whose SDK is not installed, with the command that installs it."""
    if root.where in extras.MODULES and (error := extras.missing(root.where, f"the daemon's use of {root.base}")):
        raise error
