"""Names and label values that Kubernetes accepts, made from any text without letting two texts share one.

A text that is valid stays as it is. Any other is made valid, cut, and ends with a digest of the text; so does one that
ends like a digest, lest it be taken for another's.
"""

import re
from hashlib import sha256
from typing import Final

MAX_LENGTH: Final = 63
"""Characters of a DNS label, and of a label's value."""

DIGEST_LENGTH: Final = 16
_NAME: Final = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DIGESTED: Final = re.compile(rf"-[0-9a-f]{{{DIGEST_LENGTH}}}")


def object_name(text: str, limit: int = MAX_LENGTH) -> str:
    """Return a name for an object: a DNS label that begins with a letter, as names of Services do."""
    stem = re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")
    return _fit(text, _NAME, stem if stem[:1].isalpha() else f"x-{stem}", limit)


def label_value(text: str) -> str:
    """Return a value for a label: ``uid:1000`` becomes ``uid-1000-`` and a digest. An empty text stays empty."""
    return _fit(text, _LABEL, re.sub("[^A-Za-z0-9_.-]+", "-", text).strip("-_."), MAX_LENGTH) if text else ""


def is_object_name(text: str) -> bool:
    """Return True if an object may have this name (a DNS subdomain, with which snapshots are named)."""
    part = "[a-z0-9]([a-z0-9-]*[a-z0-9])?"
    return len(text) <= 253 and re.fullmatch(rf"{part}(\.{part})*", text) is not None


def _fit(text: str, valid: "re.Pattern[str]", stem: str, limit: int) -> str:
    digested = _DIGESTED.fullmatch(text[-DIGEST_LENGTH - 1 :])
    if len(text) <= limit and valid.fullmatch(text) and not digested:
        return text
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_LENGTH]
    stem = stem[: limit - DIGEST_LENGTH - 1].rstrip("-_.")
    return f"{stem}-{digest}" if stem else f"x-{digest}"
