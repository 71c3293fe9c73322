"""S3, for archives and locks: one client, and the mapping of its errors. The SDK is imported on first use.

Services verify what is sent by `Content-MD5`, which all of them know. The checksums of the SDK are turned off: some
services refuse their headers (Backblaze B2), others the signature that comes with them (GCS), and Amazon refuses to
complete an upload by checksums that were not announced when it began.
"""

from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, lru_cache, partial
from hashlib import md5
from typing import Any, Final

from sandkeep.errors import DataError, ProviderError, SandkeepError, SetupError, StateError
from sandkeep_store.buckets.answers import answer_s, ask_again, unreadable
from sandkeep_store.buckets.config import STORAGE, S3Settings, Storage

CONNECT_S: Final = 10
SECONDS_AN_ATTEMPT: Final = 15
"""Average and maximum delay between the SDK's retries, in seconds."""
CONNECTIONS: Final = 16
SENT_AGAIN: Final = ("BadDigest", "IncompleteBody", "ConditionalRequestConflict", "OperationAborted")
"""Codes of refusals that the SDK takes for final: bytes that were damaged on the way, and other requests to the same
object that were under way.
"""
SENT_AGAIN_AFTER_S: Final = 0.2


def connect(storage: Storage = STORAGE, patience_s: float = 60, read_s: float | None = None) -> Any:
    """Return the SDK's client, which many threads may use; made on first use. Raises `not_configured`.

    It retries transient errors for about `patience_s` seconds; an answer may take `read_s`, by default as `answer_s`
    says.
    """
    attempts = 1 if patience_s < 1 else 2 + int(patience_s / SECONDS_AN_ATTEMPT)
    return _connect(replace(storage.s3(), bucket=""), attempts, answer_s(patience_s) if read_s is None else read_s)


@lru_cache
def _connect(settings: S3Settings, attempts: int, read_s: float) -> Any:
    from boto3.session import Session
    from botocore.config import Config
    from botocore.session import Session as Core

    core = Core()
    core.register_component("data_loader", _models())
    client = Session(botocore_session=core).client(
        "s3",
        endpoint_url=settings.endpoint_url,
        region_name=settings.region,
        use_ssl=settings.use_ssl,
        config=Config(
            connect_timeout=min(CONNECT_S, read_s),
            read_timeout=read_s,
            max_pool_connections=CONNECTIONS,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            retries={"mode": "standard", "total_max_attempts": attempts},
            s3={"addressing_style": "path" if settings.endpoint_url else "auto"},
        ),
    )

    for request in ("PutObject", "UploadPart"):
        client.meta.events.register(f"needs-retry.s3.{request}", partial(_again_after, max(attempts, 2)))
    return client


def _again_after(most_attempts: int, response: Any, attempts: int, **_: Any) -> float | None:
    """Return the seconds after which a request is sent again; None if it is not."""
    code = response[1].get("Error", {}).get("Code") if response else None
    return SENT_AGAIN_AFTER_S * attempts if code in SENT_AGAIN and attempts < most_attempts else None


@cache
def _models() -> Any:
    """Return the loader of the SDK's models of S3, with its cache: a client with a cache of its own takes 12 MiB."""
    from botocore.session import Session

    return Session().get_component("data_loader")


def digest_of(content: bytes) -> str:
    """Return the value of `ContentMD5` for a request's content."""
    return b64encode(md5(content, usedforsecurity=False).digest()).decode()


def pages(call: Callable[..., Any], where: str, following: dict[str, str], **request: Any) -> Iterator[Any]:
    """Yield the pages of a listing. `following` names the parameters by which the next page is asked for, each with
    the field of the answer that tells it.
    """
    marks: dict[str, Any] = {}

    def ask() -> Any:
        with translated_errors(where):
            return call(**request, **marks)

    while True:
        page = ask_again(ask)
        yield page
        if not page.get("IsTruncated"):
            return
        marks = {parameter: page[field] for parameter, field in following.items()}


@contextmanager
def translated_errors(name: str) -> Iterator[None]:
    """Turns the SDK's errors into ours. `name` is an ``s3://`` URI. The codes are those of `gcs_client`'s."""
    import urllib3
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        NoCredentialsError,
        ParamValidationError,
    )
    from botocore.parsers import ResponseParserError

    try:
        yield
    except ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        raise refusal(name, status, str(error.response.get("Error", {}).get("Code", ""))) from error
    except NoCredentialsError:
        raise SetupError(
            "not_configured",
            "the daemon has no credentials for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in its environment",
            setting="AWS_ACCESS_KEY_ID",
        ) from None
    except ParamValidationError:
        raise  # a defect of ours
    except ResponseParserError as error:
        raise unreadable(name, error) from error
    except (BotoCoreError, urllib3.exceptions.HTTPError, ConnectionError) as error:
        raise ProviderError(
            "provider_unavailable", f"S3 cannot be reached for {name} ({type(error).__name__}): try again later"
        ) from error


def refusal(name: str, status: int, code: str) -> SandkeepError:
    """Return the error for an HTTP status and error code of the service."""
    if code == "NoSuchBucket":
        return SetupError("not_configured", f"there is no bucket for {name}: create it, or correct SANDBOX_S3_BUCKET")
    if status == 404:
        return DataError("snapshot_missing", f"there is no {name}", place=name)
    if status == 412:
        return StateError("conflict", f"{name} was changed meanwhile, or is there already", place=name)
    if status in (401, 403):
        return SetupError(
            "not_configured",
            f"S3 does not let the daemon use {name} ({code}): check its credentials and their permissions",
        )
    if status == 501:
        return SetupError(
            "not_supported",
            f"the S3 service has no conditional writes, which {name} needs: use another service",
        )
    return ProviderError("provider_unavailable", f"S3 failed at {name} ({code or status}): try again later")
