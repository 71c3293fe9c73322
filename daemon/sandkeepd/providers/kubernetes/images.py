"""Images of the Kubernetes provider: references, which nodes pull by themselves, and templates of the cluster.

Nothing is made in the cluster for one. Instead of a reference there may be ``sandboxtemplate/NAME`` or
``sandboxwarmpool/NAME``, as ``kubectl get`` takes them.
"""

from hashlib import sha256
from typing import Final

import msgspec

from sandkeep.errors import CallerError, SetupError
from sandkeep.kubernetes import versions
from sandkeep.kubernetes.names import is_object_name
from sandkeep.settings.daemon import DOCKER_BASE
from sandkeepd.contract import image_references
from sandkeepd.contract.caller import Caller, Progress
from sandkeepd.contract.images import Building, ImageRequest, Images, ImportedImage
from sandkeepd.providers.kubernetes.cluster import Json, Kind
from sandkeepd.providers.kubernetes.objects import Objects
from sandkeepd.providers.kubernetes.plan import REFERENCES, Details

_TEMPLATE: Final = "sandboxtemplate"
_WARM_POOL: Final = "sandboxwarmpool"


class KubernetesImages(Images, Building):
    """See `Images` and `Building`."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def default_base(self) -> str:
        return DOCKER_BASE()

    async def make(self, image_id: str, request: ImageRequest, caller: Caller, progress: Progress) -> ImportedImage:
        if request.kind != "reference":
            raise SetupError("not_supported", REFERENCES, field="source")
        details = await self._details(request.source)
        text = msgspec.json.encode(details)
        return ImportedImage(
            digest=f"sha256:{sha256(text).hexdigest()}", size_bytes=0, details=dict(msgspec.to_builtins(details))
        )

    async def _details(self, source: str) -> Details:
        word, slash, name = source.partition("/")
        if slash and word == _TEMPLATE:
            await self._required(word, name)
            return Details(template=name, warm_pool=await self._pool_of(name))
        if slash and word == _WARM_POOL:
            return Details(template=_template_of(await self._required(word, name)), warm_pool=name)
        return Details(image=image_references.parse(source, "source").in_full)

    async def _kind(self, word: str) -> Kind:
        known = await self._objects.forms()
        if known.claims is None:
            message = f"the cluster has no {versions.EXTENSIONS.name}: install agent-sandbox's extensions there"
            raise SetupError("not_supported", message)
        return Kind(versions.EXTENSIONS.name, known.claims, f"{word}s")

    async def _required(self, word: str, name: str) -> Json:
        """Return a template or a pool. Raises `not_found`."""
        found = await self._objects.document(await self._kind(word), name) if is_object_name(name) else None
        if found is None:
            raise CallerError("not_found", f"source: the cluster has no {word} {name[:80]!r}", field="source")
        return found

    async def _pool_of(self, template: str) -> str | None:
        """Return the pool of a template, which claims name since v1beta1; the first by name of several."""
        kind = await self._kind(_WARM_POOL)
        if kind.version == "v1alpha1":
            return None
        pools = [pool for pool in await self._objects.all(kind) if _template_of(pool) == template]
        if not pools:
            message = f"source: no sandboxwarmpool has the template {template}: make one, which may have no replicas"
            raise CallerError("not_found", message, field="source")
        return min(str(pool["metadata"]["name"]) for pool in pools)

    async def remove(self, image_id: str) -> None:
        """See `Images.remove`. There is nothing of it."""


def _template_of(pool: Json) -> str:
    return str(((pool.get("spec") or {}).get("sandboxTemplateRef") or {}).get("name") or "")
