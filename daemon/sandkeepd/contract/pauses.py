"""Suspending a sandbox, and resuming it.

The daemon suspends by `suspend` and resumes by `resume`, each with its intent on record before. An administrator can
do the same by the engine's own command: so the daemon follows each sandbox in a task of its own, and records the
changes that it sees::

    while True:
        paused = instance.pauses.is_paused()
        ...  # on record: suspended or resumed from outside, if it differs from the order
        await instance.pauses.pause_changed(paused)

Over a keeper `keeper.pause.Pauses` has all of it but `suspend` and `resume`.
"""

from typing import Protocol


class Pausing(Protocol):
    """`instance.pauses`: present when the provider can suspend sandboxes. No process of a suspended one runs, and all
    of them keep their state. Requests to it wait meanwhile, without a deadline. `no_pauses` is the reason why this one
    cannot be suspended, or None.
    """

    no_pauses: str | None

    @property
    def deadline_s(self) -> float:
        """Seconds that `suspend` and `resume` may take."""
        ...

    @property
    def reason(self) -> str | None:
        """The reason why the provider suspended it by itself; None if it did not, or it was resumed."""
        ...

    async def suspend(self) -> None:
        """Freeze all processes. Safe to repeat. Raises `provider_unavailable` at once when the engine does not answer;
        after an interruption, `is_paused` gives the outcome.
        """
        ...

    async def resume(self) -> None:
        """Thaw all processes. Safe to repeat. Raises as `suspend` does."""
        ...

    def is_paused(self) -> bool:
        """Return True if it is frozen, by the daemon or from outside. A newly adopted instance knows."""
        ...

    async def pause_changed(self, paused: bool) -> None:
        """Wait until `is_paused` differs from `paused`."""
        ...
