"""Claims on resources of the machine that only one sandbox may own, such as a host uid.

`Provider.plan` makes the claim, before the intent is recorded, so that a recorded resource is always claimed::

    plan = provider.plan(sandbox_id, …)  # claims uid 1003
    await record(intent with the plan)   # if this fails: provider.claims.withdraw(sandbox_id, plan)
    await provider.create(…, plan)
    await provider.terminate(…, plan)    # gives uid 1003 back

A fork or a restore that a dead daemon had begun is begun again with the plan on record, which may be hours later:
`claim_again` claims the resources of that plan, or other ones where they have another owner by now.
"""

from typing import Any, Protocol


class Claiming(Protocol):
    """`provider.claims`: present when `plan` claims resources that nothing else on the machine may use meanwhile.

    A claim ends with `terminate`. The claim of a daemon that died before the plan was on record ends with `clean_up`.
    """

    def withdraw(self, sandbox_id: str, plan: dict[str, Any]) -> None:
        """Release the claim of a plan that was not recorded. Does not block."""
        ...

    def claim_again(self, sandbox_id: str, plan: dict[str, Any]) -> dict[str, Any]:
        """Claim the resources of the plan of a sandbox that was not made; return the plan, changed where they have
        another owner now.

        Does not block. Raises `provider_unavailable`.
        """
        ...
