"""A daemon with a second provider, the fake one, which says nothing while a file lies in the state directory.

python -m tests.support.two_providers
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from tests.support.fake_provider import open_fake

from sandkeepd import main
from sandkeepd.app import daemon, reconcile
from sandkeepd.contract.provider import Provider
from sandkeepd.core import retry
from sandkeepd.providers.registry import open_providers
from sandkeepd.sandboxes import runtimes, suspend, termination

SILENT = "silent"


@asynccontextmanager
async def both(state_dir: str, *, log_id: str) -> AsyncIterator[dict[str, Provider]]:
    place = f"{state_dir}/fake"
    os.makedirs(place, exist_ok=True)
    async with open_providers(state_dir, log_id=log_id) as known, open_fake(place, log_id) as fake:

        async def answer() -> None:
            while os.path.exists(f"{state_dir}/{SILENT}"):
                await trio.sleep(0.01)

        setattr(fake.faults, "answer", answer)  # noqa: B010
        yield {**known, fake.name: fake}


def play() -> None:
    """Be that daemon, and an impatient one."""
    reconcile.ANSWER_DEADLINE_S, retry.RETRY_S = 1.0, 0.2  # type: ignore[misc]
    runtimes.ADOPTION_PATIENCE_S = 0.2
    termination.END_DEADLINE_S = suspend.END_DEADLINE_S = 1.0
    daemon.open_providers = both  # type: ignore[attr-defined]
    main.main()


if __name__ == "__main__":
    play()
