"""Choice of a provider for callers that leave it to the daemon: Docker if it works here, else local.

A caller that names a provider gets that one or an error; only here is one replaced by another. Without a choice an
image is of the provider that its source takes (`contract.image_sources`), and a sandbox of its image's (`core.rules`).
"""

from typing import Any, Final

import msgspec

from sandkeep.events import DAEMON_STREAM, ProviderFellBack
from sandkeep.model import ProviderChoice
from sandkeep.protocol.methods import ProviderChoose
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core

WANTED: Final = "docker"
FALLBACK: Final = "local"


class ProviderChooser:
    """``provider.choose``, and its handler."""

    method = "provider.choose"

    def __init__(self, core: Core) -> None:
        self._core = core

    async def choose(self, request: Request[ProviderChoose]) -> ProviderChoice:
        """Ask the provider that is wanted whether it works here; if not, put down that another is used."""
        if not request.params.enabled:
            return ProviderChoice(provider=FALLBACK)
        found = await self._core.provider(WANTED).capabilities()
        if found.works:
            return ProviderChoice(provider=WANTED)
        why = found.why or "it does not work here"
        event = ProviderFellBack(asked=WANTED, used=FALLBACK, why=why)
        await self._core.intend(NewEvent(DAEMON_STREAM, event), request.meta)
        return ProviderChoice(provider=FALLBACK, fell_back=True, why=why)

    async def again(self, _: Request[Any], first: Recorded) -> ProviderChoice:
        """See `Command.again`: the earlier choice stands."""
        event = msgspec.json.decode(first.data, type=ProviderFellBack)
        return ProviderChoice(provider=event.used, fell_back=True, why=event.why)
