"""Objects in buckets of Google Cloud Storage and of S3, read with the credentials of the client's user.

The daemon has credentials of its own, with which it reads no address that a user gives: it would hand out objects that
the user may not read himself. The SDKs take a second to import, so they are imported on first use.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from sandkeep.errors import CallerError, ProviderError, SandkeepError, SetupError
from sandkeep.settings import storage as settings
from sandkeep.system import extras

GCS: Final = "gs://"
S3: Final = "s3://"
_CHUNK_BYTES: Final = 8 << 20


class BucketObject(NamedTuple):
    """One version of an object. `read` returns the next bytes, at most as many as it is told, and none at the end."""

    size_bytes: int
    read: Callable[[int], bytes]


def is_address(path: str) -> bool:
    """Return True for an address of an object: ``gs://BUCKET/OBJECT`` or ``s3://BUCKET/KEY``."""
    return path.startswith((GCS, S3))


def open_object(address: str) -> BucketObject:
    """Open an object. Raises `not_found`, `permission_denied`, `not_configured` without credentials, `not_supported`
    without the SDK, and `provider_unavailable`; so does `BucketObject.read`.
    """
    bucket, _, name = address[len(GCS) :].partition("/")
    if not bucket or not name:
        raise CallerError("invalid", f"{address}: give gs://BUCKET/OBJECT or s3://BUCKET/KEY", path=address)
    extra = "gcs" if address.startswith(GCS) else "s3"
    try:
        return _open_gcs(address, bucket, name) if extra == "gcs" else _open_s3(address, bucket, name)
    except ImportError:
        raise extras.not_installed(extra, f"reading {address}") from None


def _open_gcs(address: str, bucket: str, name: str) -> BucketObject:
    import google.auth
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import DefaultCredentialsError
    from google.cloud import storage

    emulator = settings.EMULATOR()
    try:
        credentials = AnonymousCredentials() if emulator else google.auth.default()[0]
    except DefaultCredentialsError:
        advice = "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS"
        raise _no_credentials(address, advice) from None
    options = {"api_endpoint": emulator} if emulator else None
    client = storage.Client(project=None, credentials=credentials, client_options=options)
    with _gcs_errors(address):
        blob = client.bucket(bucket).get_blob(name)
    if blob is None:
        raise _refusal(address, 404)
    reader = blob.open("rb", chunk_size=_CHUNK_BYTES, if_generation_match=blob.generation)
    return BucketObject(blob.size, _translated(reader.read, _gcs_errors, address))


def _open_s3(address: str, bucket: str, name: str) -> BucketObject:
    from boto3.session import Session
    from botocore.config import Config

    endpoint = settings.S3_ENDPOINT_URL()
    if endpoint is not None and "://" not in endpoint:
        endpoint = f"{'https' if settings.S3_USE_SSL() else 'http'}://{endpoint}"
    style = Config(s3={"addressing_style": "path" if endpoint else "auto"})
    with _s3_errors(address):
        client = Session().client("s3", endpoint_url=endpoint, region_name=settings.S3_REGION(), config=style)
        found = client.get_object(Bucket=bucket, Key=name)
    return BucketObject(found["ContentLength"], _translated(found["Body"].read, _s3_errors, address))


def _translated(read: Callable[[int], bytes], errors: Callable[[str], Any], address: str) -> Callable[[int], bytes]:
    def translated(size: int) -> bytes:
        with errors(address):
            return read(size)

    return translated


@contextmanager
def _gcs_errors(address: str) -> Iterator[None]:
    import requests
    from google.api_core.exceptions import GoogleAPICallError, RetryError
    from google.auth.exceptions import GoogleAuthError, TransportError

    try:
        yield
    except GoogleAPICallError as error:
        raise _refusal(address, error.code or 0) from error
    except (RetryError, requests.RequestException, TransportError, ConnectionError) as error:
        raise _unreachable(address, error) from error
    except GoogleAuthError as error:
        raise _refusal(address, 401) from error


@contextmanager
def _s3_errors(address: str) -> Iterator[None]:
    import urllib3
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

    try:
        yield
    except ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        raise _refusal(address, status) from error
    except (NoCredentialsError, PartialCredentialsError):
        raise _no_credentials(address, "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") from None
    except (BotoCoreError, urllib3.exceptions.HTTPError, ConnectionError) as error:
        raise _unreachable(address, error) from error


def _no_credentials(address: str, advice: str) -> SetupError:
    return SetupError("not_configured", f"you have no credentials for {address}: {advice}")


def _refusal(address: str, status: int) -> SandkeepError:
    """Return the error for an HTTP status of the service."""
    if status == 404:
        return CallerError("not_found", f"there is no {address}", path=address)
    if status in (401, 403):
        message = f"your credentials give no access to {address}: have its owner permit you to read it"
        return CallerError("permission_denied", message, path=address)
    if status == 412:
        return ProviderError("provider_unavailable", f"{address} was replaced while it was read: import it again")
    return ProviderError("provider_unavailable", f"{address} cannot be read (status {status}): try again later")


def _unreachable(address: str, error: Exception) -> ProviderError:
    return ProviderError("provider_unavailable", f"{address} cannot be read ({type(error).__name__}): try again later")
