"""The files of containers and images on this machine, located by the engine."""

import os
from functools import partial

import msgspec

from sandkeep.errors import SetupError
from sandkeepd.contract.snapshots import Source
from sandkeepd.providers.docker import trees
from sandkeepd.providers.docker.engine import Engine, inspect_image
from sandkeepd.providers.docker.plan import Plan
from sandkeepd.providers.docker.start import Handle
from sandkeepd.providers.docker.trees import ContainerFiles


class FoundFiles:
    """Locates files by one engine, after checking once that they can be read."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._has_files = False

    async def of(self, source: Source) -> ContainerFiles:
        """Return the files of a container. Raises `not_supported` where they cannot be read, `not_found`."""
        await self._require_files()
        plan, handle = msgspec.convert(source.plan, Plan), msgspec.convert(source.handle, Handle)
        return await self._engine.call(
            partial(trees.find, container_id=handle.container_id, sandbox_id=source.sandbox_id, plan=plan)
        )

    async def _require_files(self) -> None:
        """Raise `not_supported` unless the engine keeps its files in a supported way, readable and writable."""
        if not self._has_files:
            found = await self._engine.call(lambda client: client.info())
            why = trees.why_unreadable(found, root=os.geteuid() == 0)
            if why is not None:
                raise SetupError("not_supported", why)
            self._has_files = True

    async def of_image(self, image: str) -> list[str]:
        """Return the directories of an image, by the engine's name for it. Raises `not_found`, `not_supported`."""
        return trees.layers_of(await self._engine.call(partial(inspect_image, name=image)))
