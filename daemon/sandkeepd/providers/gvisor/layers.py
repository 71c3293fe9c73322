"""Layers that gVisor sandboxes begin with: those of snapshots. See `Layering`.

They are kept as those of local sandboxes are, and are immutable.
"""

import os
from collections.abc import Sequence
from typing import Any

from sandkeep.errors import SetupError
from sandkeepd.contract.layers import CopiedChanges
from sandkeepd.contract.snapshots import Source
from sandkeepd.providers.common.directory_layers import DirectoryLayers, document
from sandkeepd.providers.common.layers import Layer
from sandkeepd.providers.gvisor import probe


class GvisorLayers(DirectoryLayers):
    """`Layering` for gVisor sandboxes. Their changes are in their kernel's memory, so no layer is made of them."""

    no_forks: str | None = probe.FORKS

    async def freeze(self, name: str, source: Source) -> CopiedChanges:
        raise SetupError("not_supported", probe.FORKS)

    async def files_of_layers(self, names: Sequence[str], image_id: str | None) -> dict[str, Any]:
        if len(names) + (image_id is not None) > 1 and os.geteuid() != 0:
            raise SetupError("not_supported", "without root gVisor sandboxes need full snapshots")
        layers = [Layer(name=name, uid=self._store.uid) for name in names]
        return document(layers, over_image=image_id is not None)
