"""Errors of the API, as `Status` objects."""

from typing import Any

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class ApiError(Exception):
    """A request that the API server refuses: HTTP status, reason and message."""

    def __init__(self, code: int, reason: str | None = None, message: str = "", **details: Any) -> None:
        super().__init__(message or reason)
        self.code = code
        self.reason = reason if reason is not None else _REASONS.get(code, "")
        self.message = message or self.reason
        self.details = details

    def status(self) -> dict[str, Any]:
        """The body of the answer."""
        status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        status |= {"message": self.message, "reason": self.reason, "code": self.code}
        if self.details:
            status["details"] = self.details
        return status


def not_found(resource: str, name: str) -> ApiError:
    """No object has this name."""
    plural, _, group = resource.partition(".")
    details = {"name": name, "kind": plural} | ({"group": group} if group else {})
    return ApiError(404, "NotFound", f'{resource} "{name}" not found', **details)


def conflict(resource: str, name: str, why: str) -> ApiError:
    """The object is not in the state that the request requires."""
    plural, _, group = resource.partition(".")
    details = {"name": name, "kind": plural} | ({"group": group} if group else {})
    return ApiError(409, "Conflict", f'Operation cannot be fulfilled on {resource} "{name}": {why}', **details)


def invalid(kind: str, name: str, causes: list[tuple[str, str]]) -> ApiError:
    """Fields do not validate; `causes` are pairs of field path and message."""
    listed = ", ".join(f"{field}: {message}" for field, message in causes)
    listed = listed if len(causes) == 1 else f"[{listed}]"
    rows = [{"reason": "FieldValueInvalid", "message": message, "field": field} for field, message in causes]
    return ApiError(422, "Invalid", f'{kind} "{name}" is invalid: {listed}', name=name, kind=kind, causes=rows)
