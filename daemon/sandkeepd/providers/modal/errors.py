"""The errors of Modal's SDK in our words: one table, of which the first row that fits counts."""

import logging
from typing import Final, NamedTuple

from sandkeep.errors import CallerError, ProviderError, SandkeepError, SetupError, StateError
from sandkeepd.providers.common.remote import readable

logger = logging.getLogger("sandkeepd")

ENGINE: Final = "modal"
SETTING: Final = "MODAL_TOKEN_ID"


class Row(NamedTuple):
    """The names of classes of the SDK or of Python, and the error for them. `is_down`: the service does not answer."""

    names: tuple[str, ...]
    kind: type[SandkeepError]
    code: str
    message: str
    is_down: bool = False


TABLE: Final = (
    Row(("AuthError",), SetupError, "not_configured",
        "Modal does not accept the token: {}: set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"),
    Row(("PermissionDeniedError",), SetupError, "not_configured", "the token may not do that at Modal: {}"),
    Row(("VersionError",), SetupError, "not_configured", "Modal refuses this version of its SDK: {}: update sandkeep"),
    Row(("UnimplementedError", "NotImplementedError"), SetupError, "not_supported", "Modal cannot do that: {}"),
    Row(("AlreadyExistsError",), StateError, "conflict", "Modal has one of that name already: {}"),
    Row(("ConflictError", "SandboxTerminatedError", "SandboxTimeoutError"), StateError, "not_ready",
        "the sandbox at Modal is not in a state for that: {}"),
    Row(("NotFoundError",), CallerError, "not_found", "Modal does not have it: {}"),
    Row(("ImageBuildError",), CallerError, "invalid", "the build at Modal failed: {}"),
    Row(("InvalidError", "RequestSizeError"), CallerError, "invalid", "Modal refused the request: {}"),
    Row(("ResourceExhaustedError",), ProviderError, "provider_unavailable",
        "Modal has no room for that now: {}: try again, or see the workspace's limits"),
    Row(("SnapshotCreationError", "ExecutionError", "RemoteError", "DataLossError", "ExecTimeoutError"),
        ProviderError, "provider_unavailable", "Modal failed: {}"),
    Row(("ConnectionError", "ServiceError", "InternalError", "InternalFailure", "TimeoutError", "ClientClosed",
         "GRPCError", "StreamTerminatedError", "ProtocolError", "OSError", "ClosedResourceError"),
        ProviderError, "provider_unavailable", "Modal does not answer: {}: see status.modal.com", is_down=True),
)  # fmt: skip


def converted(error: Exception) -> SandkeepError:
    """Return our error for one that the SDK raised. Any error of it has one: a defect there ends no task of ours."""
    if isinstance(error, SandkeepError):
        return error
    names = {base.__name__ for base in type(error).__mro__}
    why = readable(str(error)) or type(error).__name__
    for row in TABLE:
        if names.intersection(row.names):
            data = {"engine": ENGINE} if row.is_down else {}
            if row.code == "not_configured":
                data["setting"] = SETTING
            return row.kind(row.code, row.message.format(why), **data)
    logger.error("Modal's SDK failed", exc_info=error)
    return ProviderError("provider_unavailable", f"Modal's SDK failed ({type(error).__name__}): {why}")


def too_slow(what: str, seconds: float) -> SandkeepError:
    """Return the error for a request that took too long."""
    message = f"Modal did not {what} within {seconds:.0f} s: see status.modal.com"
    return ProviderError("provider_unavailable", message, engine=ENGINE)
