"""Quantities of CPU and memory as Kubernetes writes them, and sizes as Docker does."""

import re
from typing import Final

_QUANTITY: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})([A-Za-z]{0,2})")
_KUBERNETES: Final = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50,
}  # fmt: skip
_DOCKER: Final = {"b": 1, "m": 2**20, "g": 2**30, "t": 2**40, "kb": 2**10, "mb": 2**20, "gb": 2**30, "tb": 2**40}
"""Docker's suffixes that are none of Kubernetes', where ``m`` is a thousandth: of a byte nobody wants that."""


def cpus(text: str) -> float:
    """Return cores from ``1.5`` or ``500m``. Raises ValueError with half a sentence."""
    number, suffix = _split(text, "a number of cores such as 1.5 or 500m")
    if suffix not in ("", "m"):
        raise ValueError("must be a number of cores such as 1.5 or 500m")
    return number / 1000 if suffix else number


def size(text: str) -> int:
    """Return bytes from ``512Mi``, ``2G`` or ``512m``. Raises ValueError with half a sentence."""
    advice = "a size such as 512Mi, 2G or 512m"
    number, suffix = _split(text, advice)
    factor = _KUBERNETES.get(suffix) or _DOCKER.get(suffix)
    if factor is None:
        raise ValueError(f"must be {advice}")
    return int(number * factor)


def _split(text: str, advice: str) -> tuple[float, str]:
    found = _QUANTITY.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"must be {advice}")
    return float(found[1]), found[2]


def shown_cpus(cores: float | None) -> str | None:
    """Return cores as text: ``1.5``."""
    return None if cores is None else f"{cores:g}"


def shown_size(size_bytes: int | None) -> str | None:
    """Return bytes as text, in the largest unit that divides them: ``512Mi``."""
    if size_bytes is None:
        return None
    for suffix in ("Pi", "Ti", "Gi", "Mi", "Ki"):
        if size_bytes and size_bytes % _KUBERNETES[suffix] == 0:
            return f"{size_bytes // _KUBERNETES[suffix]}{suffix}"
    return str(size_bytes)
