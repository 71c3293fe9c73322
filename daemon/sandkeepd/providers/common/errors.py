"""Errors of the operating system, for callers."""

from sandkeep.errors import DaemonError, ProviderError, SandkeepError


def translate(error: OSError, made: str = "the sandbox") -> SandkeepError:
    """Convert an OSError into an error for the caller who wants something `made`."""
    what = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
    if error.errno in (28, 30, 122):  # ENOSPC, EROFS, EDQUOT
        return DaemonError("storage_unavailable", f"the state directory cannot be written: {what}: make room there")
    return ProviderError("provider_unavailable", f"{made} could not be made: {what}")
