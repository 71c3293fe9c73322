"""References of container images: their syntax, their full form, and the reserved ones.

An engine also accepts the beginning of an image's id, which finds images that other users have built. So only names
are accepted here, and a name that could be an id is never given to the engine without its tag.
"""

import re
from typing import Final, NamedTuple

from sandkeep.errors import CallerError

OUR_NAME: Final = "sandkeep"
"""The name of all images made by Sandkeep: ``sandkeep:IMAGE_ID``."""

HUB: Final = "docker.io"
_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_DOMAIN: Final = rf"{_LABEL}(?:\.{_LABEL})*(?::[0-9]{{1,5}})?"
_PART: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE: Final = re.compile(
    rf"(?:(?P<domain>{_DOMAIN})/)?(?P<path>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_ID: Final = re.compile(r"(?:sha256:)?[0-9a-f]{64}")
_BEGINNING: Final = re.compile(r"[0-9a-f]+")
MOST_LENGTH: Final = 512


class Reference(NamedTuple):
    """A parsed reference: `path` is complete, with ``library/`` on the hub."""

    domain: str
    path: str
    tag: str | None
    digest: str | None

    @property
    def name(self) -> str:
        """The name as engines show it: without the parts that they add themselves."""
        if self.domain == HUB:
            return self.path.removeprefix("library/") if self.path.count("/") == 1 else self.path
        return f"{self.domain}/{self.path}"

    @property
    def in_full(self) -> str:
        """The name with its digest, or with its tag, ``latest`` by default; no engine takes this for an id."""
        if self.digest:
            return f"{self.name}@{self.digest}"
        return f"{self.name}:{self.tag or 'latest'}"


def parse(text: str, field: str) -> Reference:
    """Parse a reference. Raises `invalid`, which names `field`, also for reserved names."""
    found = _REFERENCE.fullmatch(text) if len(text) <= MOST_LENGTH else None
    if found is None or _ID.fullmatch(text):
        shown = text[:200]
        message = f"{field}: {shown!r} is not a reference such as python:3.11-slim"
        raise CallerError("invalid", message, field=field)
    domain, path = _split(found["domain"], found["path"])
    reference = Reference(domain, path, found["tag"], found["digest"])
    if reference.name == OUR_NAME:
        message = f"{field}: {text!r} is Sandkeep's name for an image: give the image's id to sandbox.create instead"
        raise CallerError("invalid", message, field=field)
    return reference


def could_be_an_id(text: str) -> bool:
    """Return True if an engine would also take this for the beginning of an image's id."""
    return _BEGINNING.fullmatch(text) is not None


def _split(domain: str | None, path: str) -> tuple[str, str]:
    """Split into the registry's name and the path there, as engines do: a first part without a dot is no registry."""
    if domain is not None and not ("." in domain or ":" in domain or domain == "localhost" or domain != domain.lower()):
        domain, path = None, f"{domain}/{path}"
    if domain in (None, HUB, f"index.{HUB}"):
        return HUB, path if "/" in path else f"library/{path}"
    assert domain is not None
    return domain, path
