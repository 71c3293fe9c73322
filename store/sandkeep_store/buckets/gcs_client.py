"""Google Cloud Storage, for archives, metadata and locks: one client, and the mapping of its errors.

The SDK takes a second to import, so it is imported on first use.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from sandkeep.errors import DataError, ProviderError, SandkeepError, SetupError, StateError
from sandkeep_store.buckets.answers import UnreadableAnswerError, answer_s
from sandkeep_store.buckets.config import STORAGE, Storage

CONNECT_S: Final = 10.0
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
SCOPE: Final = "https://www.googleapis.com/auth/devstorage.read_write"


@dataclass(frozen=True)
class Gcs:
    """The clients of the service. `client` is the SDK's; `http` sends requests that the SDK lacks, with the same
    credentials; `endpoint` is the URL prefix of the service's paths. All may be used by many threads.
    """

    client: Any
    http: Any
    endpoint: str


def connect(storage: Storage = STORAGE) -> Gcs:
    """The service, or the emulator that is set instead; connected to on first use. Raises `not_configured`."""
    return _connect(storage.gcs_emulator())


@lru_cache
def _connect(emulator: str | None) -> Gcs:
    import google.auth
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import DefaultCredentialsError
    from google.auth.transport.requests import AuthorizedSession
    from google.cloud import storage

    try:
        credentials = AnonymousCredentials() if emulator else google.auth.default(scopes=[SCOPE])[0]
    except DefaultCredentialsError:
        raise SetupError(
            "not_configured",
            "the daemon has no credentials for Google Cloud Storage: set GOOGLE_APPLICATION_CREDENTIALS in its "
            "environment",
            setting="GOOGLE_APPLICATION_CREDENTIALS",
        ) from None
    options = {"api_endpoint": emulator} if emulator else None
    client = storage.Client(project=None, credentials=credentials, client_options=options)
    return Gcs(client, _settled(AuthorizedSession(credentials), client.api_endpoint), client.api_endpoint)


def _settled(session: Any, url: str) -> Any:
    """Resolve a session's proxies and certificates once; per request it is a quarter of a small request's cost."""
    found = session.merge_environment_settings(url, {}, None, None, None)
    session.proxies, session.verify, session.cert = found["proxies"], found["verify"], found["cert"]
    session.trust_env = False
    return session


def timeouts(patience_s: float) -> tuple[float, float]:
    """Return the timeouts of a connection, and of the next byte of an answer, for a caller with so much patience."""
    read_s = answer_s(patience_s)
    return min(CONNECT_S, read_s), read_s


def retrying(patience_s: float) -> Any:
    """Return the SDK's retry policy for transient errors, and for answers that cannot be read, with a timeout of so
    many seconds.
    """
    from google.cloud.storage.retry import DEFAULT_RETRY
    from requests.exceptions import JSONDecodeError

    is_transient = DEFAULT_RETRY._predicate  # noqa: SLF001  # it has no public name

    def is_passing(error: Exception) -> bool:
        return isinstance(error, (JSONDecodeError, UnreadableAnswerError)) or bool(is_transient(error))

    policy = DEFAULT_RETRY.with_predicate(is_passing)
    return policy.with_timeout(patience_s).with_delay(FIRST_PAUSE_S, LONGEST_PAUSE_S, 2.0)


@contextmanager
def translated_errors(name: str) -> Iterator[None]:
    """Translate the SDK's errors. `name` is a ``gs://`` URI, or a bucket's name.

    `conflict` is a failed precondition, `snapshot_missing` a missing object, `not_configured` a missing or forbidden
    bucket, `provider_unavailable` any transient error.
    """
    import requests
    import urllib3
    from google.api_core.exceptions import GoogleAPICallError, RetryError
    from google.auth.exceptions import GoogleAuthError, TransportError

    unanswered = (RetryError, requests.RequestException, urllib3.exceptions.HTTPError, TransportError, ConnectionError)
    try:
        yield
    except GoogleAPICallError as error:
        raise refusal(name, error.code or 0, error.message or "") from error
    except unanswered as error:
        raise unreachable(name, error) from error
    except GoogleAuthError as error:
        raise refusal(name, 401, str(error)) from error


def refusal(name: str, status: int, answer: str) -> SandkeepError:
    """Return the error for an HTTP status of the service."""
    if status == 404 and "bucket does not exist" in answer.lower():
        return SetupError(
            "not_configured", f"there is no bucket for {name}: create it, or correct the setting that names it"
        )
    if status in (404, 410):
        return DataError("snapshot_missing", f"there is no {name}", place=name)
    if status in (304, 409, 412):
        return StateError("conflict", f"{name} was changed meanwhile, or is there already", place=name)
    if status in (401, 403):
        return SetupError(
            "not_configured",
            f"Google does not let the daemon use {name}: give its account the role Storage Object User for the bucket",
        )
    return ProviderError(
        "provider_unavailable", f"Google Cloud Storage failed at {name} (status {status}): try again later"
    )


def unreachable(name: str, error: Exception) -> ProviderError:
    """No answer at all."""
    cause = getattr(error, "cause", None) or error
    return ProviderError(
        "provider_unavailable",
        f"Google Cloud Storage cannot be reached for {name} ({type(cause).__name__}): try again later",
    )
