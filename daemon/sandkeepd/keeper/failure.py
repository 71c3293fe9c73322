"""Translation of error messages of commands inside a sandbox into errors for callers."""

import os
from typing import Final

from sandkeep.errors import CallerError, DaemonError, ProviderError, SandkeepError, SetupError, StateError


def display(path: str) -> str:
    """Return the display form of a path."""
    return repr(os.fsencode(path).decode("utf-8", "backslashreplace"))


def no_room(error: OSError) -> SandkeepError:
    """Return the error for a file that could not be made in the state directory."""
    return DaemonError("storage_unavailable", f"the state directory cannot be written: {error.strerror}")


_MEANINGS: Final = (
    ("conflict:", "conflict", ""),
    ("cannot overwrite", "conflict", "something of another type is there by now"),
    ("no space left", "disk_limit", "the sandbox's disk is full"),
    ("disk quota", "disk_limit", "the sandbox's disk is full"),
    ("wrote only", "disk_limit", "the sandbox's disk is full"),
    ("file too large", "disk_limit", "it exceeds the maximum size of a file in the sandbox"),
    ("is not a regular file", "invalid", "it is not a regular file"),
    ("invalid argument:", "invalid", ""),
    ("too deep:", "tree_too_deep", ""),
    ("permission denied", "permission_denied", "the sandbox's user may not do that"),
    ("operation not permitted", "permission_denied", "the sandbox's user may not do that"),
    ("read-only", "permission_denied", "the file system there is read-only"),
    ("not supported:", "not_supported", ""),
    ("not look like a tar archive", "invalid", "what arrived is no tar archive"),
    ("invalid tar magic", "invalid", "what arrived is no tar archive"),
    ("archive is compressed", "invalid", "the archive is compressed: unpack it with gzip -d, or as it was packed"),
    ("unexpected eof in archive", "invalid", "the archive ends too early"),
    ("tar: short read", "invalid", "the archive ends too early"),
    ("unknown typeflag", "not_supported", "the sandbox's tar cannot unpack sparse files: put GNU tar into its image"),
    ("not a directory", "not_found", "there is no such directory in the sandbox"),
    ("no such file", "not_found", "there is no such file in the sandbox"),
    ("nonexistent", "not_found", "there is no such file in the sandbox"),
    ("can't cd to", "not_found", "the sandbox's working directory is gone: give an absolute path"),
    ("input/output error", "invalid", "its file system in the sandbox cannot read or write it"),
    ("name too long", "invalid", "the path is too long"),
    ("too many levels", "invalid", "its symbolic links form a loop"),
)
_CLASSES: Final[dict[str, type[SandkeepError]]] = {
    "conflict": StateError, "disk_limit": ProviderError, "invalid": CallerError, "permission_denied": CallerError,
    "not_supported": SetupError, "not_found": CallerError, "tree_too_deep": StateError,
}  # fmt: skip


def failure(stderr: bytes, exit_code: int | None, path: str) -> SandkeepError:
    """Return the error of a helper command that failed on `path`, from its first known message."""
    text = stderr.decode("utf-8", "backslashreplace").strip()
    for line in text.splitlines():
        for pattern, code, meaning in _MEANINGS:
            if pattern in line.lower():
                why = meaning or line[len(pattern) :].strip()
                detail = "" if line.lower().startswith(pattern) else f" ({line[:300]})"
                return _CLASSES[code](code, f"{display(path)}: {why}{detail if meaning else ''}", field="path")
    if exit_code is None:
        return StateError("not_ready", f"{display(path)}: the sandbox ended meanwhile, or its command was killed in it")
    message = f"{display(path)} could not be read or written: {text[:300] or f'exit code {exit_code}'}"
    return ProviderError("provider_unavailable", message)
