"""Mounts and buckets of archives, metadata and locks that outlive this machine. See `settings` for the manner.

The names and meanings are those of the projects that Sandkeep serves. `sandkeep_store.buckets.config` decides by them;
besides it only `sandkeep.clients.buckets` reads how to reach a service, in the client's environment.
"""

import re
from typing import Final
from urllib.parse import urlsplit

from sandkeep.settings.daemon import Setting, absolute_path, matching, optional, parse_switch

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


def _bucket(text: str) -> str:
    if not _BUCKET.fullmatch(text) or ".." in text:
        raise ValueError("give a bucket's name as its service allows it, without gs:// or s3:// and without a path")
    return text


def _directory(text: str) -> str:
    path = absolute_path(text).lstrip("/")
    if not path:
        raise ValueError("give a directory of its own, not the root directory")
    return f"/{path}"


def _address(text: str) -> str:
    """A URL, or a host and port to which `S3_USE_SSL` adds the scheme."""
    parts = urlsplit(text if "://" in text else f"//{text}")
    if parts.scheme not in ("", "http", "https") or not parts.hostname or parts.username or parts.query:
        raise ValueError("give http://HOST:PORT, https://HOST or HOST:PORT, without a user or a query")
    _ = parts.port  # raises ValueError for one that is no number
    return text.rstrip("/")


def _url(text: str) -> str:
    if "://" not in text:
        raise ValueError("give http://HOST:PORT")
    return _address(text)


LOCK_BUCKET = optional(
    "SANDBOX_LOCK_BUCKET",
    _bucket,
    "The GCS bucket of the locks of sandboxes that several daemons share (`sandboxes/<name>/lock.json`).",
)
LOCK_MOUNT_PATH = optional(
    "SANDBOX_LOCK_MOUNT_PATH",
    _directory,
    "A directory for locks instead of that bucket: of this machine, or on a network file system that daemons share. "
    "One where a bucket is mounted is refused.",
)
METADATA_BUCKET = optional(
    "SANDBOX_METADATA_BUCKET",
    _bucket,
    "The GCS bucket of the metadata of shared sandboxes (`sandboxes/<name>/sandkeep.json`, and `metadata.json` for "
    "cloud-run-sandbox).",
)
METADATA_MOUNT_PATH = optional(
    "SANDBOX_METADATA_MOUNT_PATH",
    _directory,
    "A directory for that metadata, where locks are in a directory, too. Where a bucket is mounted nothing is written: "
    "no writer there can tell whether another was first.",
)
CHECKPOINT_BUCKET = optional("SANDBOX_CHECKPOINT_BUCKET", _bucket, "The GCS bucket of checkpoints.")
CHECKPOINT_MOUNT_PATH = optional(
    "SANDBOX_CHECKPOINT_MOUNT_PATH",
    _directory,
    "The mount point of that bucket. When set, checkpoints are read and written there.",
)
ARTIFACT_BASE_URL = optional(
    "SANDBOX_ARTIFACT_BASE_URL",
    _url,
    "The address below which somebody publishes artifacts: `download_url` is that and their path. A session's own "
    "`artifact_base_url` goes first.",
)
SNAPSHOT_BUCKET = optional("FILESYSTEM_SNAPSHOT_BUCKET", _bucket, "The GCS bucket of snapshots.")
SNAPSHOT_MOUNT_PATH = optional(
    "FILESYSTEM_SNAPSHOT_MOUNT_PATH",
    _directory,
    "The mount point of that bucket. When set, snapshots are read and written there.",
)
SNAPSHOT_DIR = optional(
    "SANDBOX_SNAPSHOT_DIR",
    _directory,
    "The directory of this machine for archives, when they are in no bucket and on no mount, and for their copies on "
    "disk when they are. One that others can write to is refused.",
    shown="`archives` in SANDKEEP_STATE_DIR",
)
S3_BUCKET = optional(
    "SANDBOX_S3_BUCKET",
    _bucket,
    "The S3 bucket of archives, when neither a mount nor a GCS bucket is set for them. Credentials are found as "
    "every AWS tool finds them (`AWS_ACCESS_KEY_ID` and so on).",
)
S3_ENDPOINT_URL = optional(
    "SANDBOX_S3_ENDPOINT_URL",
    _address,
    "The S3 service to use: `https://HOST`, `http://HOST:PORT`, or `HOST:PORT`.",
    shown="Amazon's",
)
S3_REGION = optional(
    "SANDBOX_S3_REGION",
    matching(r"[a-z0-9][a-z0-9-]{0,62}", "give the name of a region such as eu-central-1"),
    "The region of the S3 bucket.",
    shown="the AWS configuration's, else us-east-1",
)
S3_USE_SSL = Setting(
    "SANDBOX_S3_USE_SSL", parse_switch, "1", "Use TLS for S3 when SANDBOX_S3_ENDPOINT_URL has no scheme."
)
EMULATOR = optional(
    "STORAGE_EMULATOR_HOST",
    _url,
    "A GCS emulator to use instead of Google's service, as `http://HOST:PORT`. No credentials are sent to it.",
)
