"""Claims on resources of the machine that only one sandbox may have."""

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Claiming(Protocol):
    """What a provider can do beyond `Provider` when `plan` claims what nobody else on the machine may have meanwhile.

    A claim goes with `terminate`. What a daemon claimed that died before the plan was on record goes with `clean_up`.
    """

    def withdraw(self, sandbox_id: str, plan: dict[str, Any]) -> None:
        """Give back what was claimed for a plan that did not get on record. Does not block."""
        ...

    def claim_again(self, sandbox_id: str, plan: dict[str, Any]) -> dict[str, Any]:
        """Claim what a plan says of a sandbox that was not made; answer the plan, changed where that is another's now.

        Does not block. Raises `provider_unavailable`.
        """
        ...
