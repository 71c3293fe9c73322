"""The source of an image, and the provider that makes it: the rule, without the look at the file system that it takes.

A reference and a directory with a Dockerfile are for Docker, as is a directory with a `base`; any other directory is
for the local provider. An explicitly named provider is used as asked: one that only copies directories copies one with
a Dockerfile too.
"""

import os
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from sandkeep.errors import CallerError, SetupError
from sandkeep.model import ImageKind
from sandkeep.protocol.methods import ImageCreate
from sandkeepd.contract import image_references

COPIER: Final = "local"
BUILDER: Final = "docker"
DOCKERFILE: Final = "Dockerfile"

Seen: TypeAlias = Literal["directory", "dockerfile", "file"]
"""The type of a caller's path: a directory, one that holds the Dockerfile looked for, or a file."""


class Source(Struct, frozen=True, kw_only=True):
    """The source of an image; the fields are those of `ImageRequest`."""

    kind: ImageKind
    source: str
    base: str | None = None
    dockerfile: str | None = None

    @property
    def provider(self) -> str:
        """The provider that makes it by default."""
        return COPIER if self.kind == "directory" and self.base is None else BUILDER


def is_path(source: str) -> bool:
    """Return True if it is a path of the host; anything else is a reference."""
    return source.startswith("/")


def copied(command: ImageCreate, provider: str) -> Source:
    """Return the source for a provider that only copies directories. Raises `not_supported`."""
    wrong = [name for name in ("base", "dockerfile") if getattr(command, name) is not None]
    if wrong or not is_path(command.source):
        field, what = (wrong[0], f"no {wrong[0]}") if wrong else ("source", "no references: give an absolute path")
        message = f"the provider {provider!r} copies directories and takes {what}; the provider 'docker' does"
        raise SetupError("not_supported", message, field=field)
    return Source(kind="directory", source=command.source)


def referred(command: ImageCreate) -> Source:
    """Return the source when a reference is given. Raises `invalid`."""
    for field in ("base", "dockerfile"):
        if getattr(command, field) is not None:
            raise CallerError("invalid", f"{field}: it goes with a directory, not with a reference", field=field)
    try:
        image_references.parse(command.source, "source")
    except CallerError as error:
        raise CallerError(
            "invalid", f"{error.message}; a directory is given by its absolute path", field="source"
        ) from None
    return Source(kind="reference", source=command.source)


def dockerfile_path(command: ImageCreate) -> str:
    """Return the Dockerfile to look for below the directory. Raises `invalid` for a path that leads out of it."""
    if command.dockerfile is None:
        return DOCKERFILE
    if command.base is not None:
        message = "base: a Dockerfile names its base itself: leave out base, or dockerfile"
        raise CallerError("invalid", message, field="base")
    path = os.path.normpath(command.dockerfile)
    if path.startswith(("/", "../")) or path in (".", ".."):
        message = f"dockerfile: {command.dockerfile[:200]!r} is not a path below the directory"
        raise CallerError("invalid", message, field="dockerfile")
    return path


def seen(command: ImageCreate, what: Seen) -> Source:
    """Return the source when the path was looked at. Raises `invalid`."""
    if command.base is not None:
        image_references.parse(command.base, "base")
    if what == "file":
        return _of_file(command)
    if command.dockerfile is not None:
        if what != "dockerfile":
            message = f"dockerfile: there is no file {command.dockerfile} in {command.source}"
            raise CallerError("invalid", message, field="dockerfile")
        return Source(kind="dockerfile", source=command.source, dockerfile=dockerfile_path(command))
    if command.base is None and what == "dockerfile":
        return Source(kind="dockerfile", source=command.source, dockerfile=DOCKERFILE)
    return Source(kind="directory", source=command.source, base=command.base)


def _of_file(command: ImageCreate) -> Source:
    """Return the source for a Dockerfile given by its own path: the directory that contains it is the build context."""
    directory, name = os.path.split(os.path.normpath(command.source))
    if DOCKERFILE.lower() not in name.lower() or command.base or command.dockerfile:
        message = f"source: {command.source} is a file: give a directory, or a Dockerfile"
        raise CallerError("invalid", message, field="source")
    return Source(kind="dockerfile", source=directory, dockerfile=name)
