"""Claims on resources of the machine that only one sandbox may have, such as a host uid.

`Provider.plan` makes the claim, before anything is on record, so that what goes on record is claimed by then::

    plan = provider.plan(sandbox_id, …)  # claims uid 1003
    await record(intent with the plan)   # if this fails: provider.claims.withdraw(sandbox_id, plan)
    await provider.create(…, plan)
    await provider.terminate(…, plan)    # gives uid 1003 back

A fork or a restore that a dead daemon had begun is begun again with the plan on record, which may be hours later:
`claim_again` claims what that says, or something else where it is another's by now.
"""

from typing import Any, Protocol


class Claiming(Protocol):
    """`provider.claims`: there when `plan` claims what nobody else on the machine may have meanwhile.

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
