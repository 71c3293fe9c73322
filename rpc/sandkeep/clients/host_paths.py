"""Paths of the caller's machine in calls: made absolute here, as the daemon has another working directory.

The source of an image is a path or the reference of a container image. A `Path` is always a path, and so is text that
no reference can be; text that could be both is refused.
"""

import os
import re
from os import PathLike
from typing import Any, Final

from sandkeep.errors import CallerError

_PATHS: Final = {
    "branch.create": ("source",),
    "branch.plan": ("target",),
    "branch.commit": ("target",),
}
"""Parameters that are paths of the caller's machine, by their methods."""

_REFERENCES: Final = {"image.create": ("base",), "session.ensure": ("image",)}
"""Parameters that are references of container images, and never paths."""

_DIRECTORY_ONLY: Final = ("base", "dockerfile")
"""Parameters of `image.create` that go with a directory, and not with a reference."""

_COULD_BE_REFERENCE: Final = re.compile(r"[a-z0-9][A-Za-z0-9._/:@-]*")


def resolve(method: str, params: dict[str, Any]) -> None:
    """Make the paths among the parameters of a call absolute, in place. Raises `invalid` as `image_source` does, and
    for a path in place of a reference.
    """
    for name in _REFERENCES.get(method, ()):
        if isinstance(params.get(name), PathLike):
            message = f"{name}: a path is no reference of a container image: give the reference as a str"
            raise CallerError("invalid", message, field=name)
    for name in _PATHS.get(method, ()):
        if isinstance(params.get(name), str | PathLike):
            params[name] = absolute(params[name], name)
    if method == "image.create" and isinstance(params.get("source"), str | PathLike):
        needs_directory = any(params.get(name) is not None for name in _DIRECTORY_ONLY)
        params["source"] = image_source(params["source"], needs_directory=needs_directory)


def image_source(source: "str | PathLike[str]", *, needs_directory: bool = False) -> str:
    """Return the absolute path that a source of an image means here, or the reference that it is.

    Raises `invalid` for text that is both a path here and a possible reference, unless it `needs_directory`.
    """
    if not isinstance(source, str):
        return absolute(source, "source")
    if source.startswith(("/", "./", "../", "~")) or source in (".", "..") or source.endswith("/"):
        return absolute(os.path.expanduser(source), "source")
    if needs_directory:
        return absolute(source, "source")
    if not os.path.lexists(source):
        return source
    if not _COULD_BE_REFERENCE.fullmatch(source):
        return absolute(source, "source")
    if (reference := _with_registry(source)) == source:
        return source
    kind = "directory" if os.path.isdir(source) else "file"
    message = (
        f"source: {source!r} is a {kind} here, and could be the reference of a container image: "
        f"give ./{source} for the {kind}, {reference} for the image"
    )
    raise CallerError("invalid", message, field="source")


def absolute(path: "str | PathLike[str]", field: str) -> str:
    """Return a path from the root on. Raises `invalid` when the working directory was removed."""
    text = os.fsdecode(path)
    try:
        return os.path.abspath(text) if text else text  # the daemon refuses an empty one
    except FileNotFoundError:
        message = f"{field}: the working directory was removed: give an absolute path"
        raise CallerError("invalid", message, field=field) from None


def _with_registry(reference: str) -> str:
    """Return the reference with its registry's name, which no relative path is taken for."""
    first, slash, _ = reference.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return reference
    return f"docker.io/{reference}" if slash else f"docker.io/library/{reference}"
