"""Refusals of an API server as errors of Sandkeep's."""

from typing import Any

import msgspec

from sandkeep.errors import CallerError, ProviderError, SandkeepError, SetupError, StateError
from sandkeep.kubernetes.objects import MAX_MESSAGE_CHARACTERS, text_at


def error_of(status: int, body: str | bytes | None, action: str) -> SandkeepError:
    """Return the error for an HTTP status and its body, a `Status` object; `action` says what was tried."""
    message = f"{action}: {_message(body) or f'the cluster answered HTTP status {status}'}"
    if status in (401, 403):
        return SetupError("not_configured", f"{message}: grant it to the account that is used", status=status)
    if status == 404:
        return CallerError("not_found", message)
    if status == 409:
        return StateError("conflict", message)
    if status in (400, 413, 422):
        return CallerError("invalid", message, field="body")
    return ProviderError("provider_unavailable", message, status=status)


def _message(body: str | bytes | None) -> str:
    """Return the message of a `Status` object; of any other body, its beginning."""
    try:
        parsed: Any = msgspec.json.decode(body or b"")
    except msgspec.DecodeError:
        parsed = body.decode(errors="replace") if isinstance(body, bytes) else body or ""
    message = parsed if isinstance(parsed, str) else text_at({"status": parsed}, "status", "message")
    return " ".join(message.split())[:MAX_MESSAGE_CHARACTERS].rstrip(".")
