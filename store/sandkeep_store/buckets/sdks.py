"""Check that the SDK of a bucket is installed, without importing it: the import takes a second."""

from importlib.util import find_spec
from typing import Final

from sandkeep.errors import SetupError
from sandkeep_store.buckets.config import Root

_NEEDED: Final = {
    "gcs": ("google.cloud.storage", "requests"),
    "s3": ("boto3",),
}
"""By the kind of root, which is also the name of the extra that installs them."""


def require_sdk(root: Root) -> None:
    """Raise `not_supported` for a bucket whose SDK is not installed, naming the extra that brings it."""
    for module in _NEEDED.get(root.where, ()):
        if not _is_there(module):
            raise SetupError(
                "not_supported",
                f"{module} is not installed beside the daemon: install sandkeep[{root.where}] to use {root.base}",
                extra=root.where,
            )


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it would be in
        return False
