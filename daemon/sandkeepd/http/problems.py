"""Errors over HTTP: problem documents (RFC 9457) with our codes, and the status of each code."""

from http import HTTPStatus
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from sandkeep.errors import SandkeepError

MEDIA_TYPE: Final = "application/problem+json"

STATUS: Final[dict[str, HTTPStatus]] = {
    "not_found": HTTPStatus.NOT_FOUND,
    "invalid": HTTPStatus.BAD_REQUEST,
    "permission_denied": HTTPStatus.FORBIDDEN,
    "quota_exceeded": HTTPStatus.TOO_MANY_REQUESTS,
    "snapshot_missing": HTTPStatus.NOT_FOUND,
    "compacted": HTTPStatus.GONE,
    "timeout": HTTPStatus.GATEWAY_TIMEOUT,
    "not_supported": HTTPStatus.NOT_IMPLEMENTED,
    "not_configured": HTTPStatus.SERVICE_UNAVAILABLE,
    "provider_unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
    "storage_unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
    "disk_limit": HTTPStatus.INSUFFICIENT_STORAGE,
    "internal": HTTPStatus.INTERNAL_SERVER_ERROR,
}
"""The statuses of codes; a code that is not here conflicts with the present state."""


class Problem(Struct, frozen=True, kw_only=True):
    """A problem document. `code` is one of the codes of the reference, `detail` says what to do, and `data` has the ids
    and names concerned.
    """

    title: str
    status: int
    detail: str
    code: str
    type: str = field(default="about:blank")
    data: dict[str, Any] = field(default_factory=dict)


class RefusedError(Exception):
    """A request that is answered with another status than that of its error's code."""

    def __init__(self, status: HTTPStatus, error: SandkeepError) -> None:
        super().__init__(error.message)
        self.status = status
        self.error = error


def status_of(error: SandkeepError) -> HTTPStatus:
    """Return the status of an error."""
    return STATUS.get(error.code, HTTPStatus.CONFLICT)


def document(error: SandkeepError, status: HTTPStatus) -> bytes:
    """Return the problem document of an error. Raises TypeError if its data cannot be written as JSON."""
    problem = Problem(title=status.phrase, status=status.value, detail=error.message, code=error.code, data=error.data)
    return msgspec.json.encode(problem)
