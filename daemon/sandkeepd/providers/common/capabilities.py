"""Capabilities in reports of providers."""

from sandkeep.model import Capability


def capability(works: object, why: str) -> Capability:
    """Return a capability that is there if `works` is true; `why` is the reason if it is not."""
    return Capability(works=True) if works else Capability(works=False, why=why)
