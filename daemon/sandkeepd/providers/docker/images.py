"""Images of the Docker provider: built by the engine, or taken from it and its registries by their references.

Each is ``sandkeep:IMAGE_ID`` to the engine, which keeps it from being removed there. An image with a caller's own name
is never removed. `references` decides which image a reference means to a caller, `builder` builds one, `image_probe`
examines it.
"""

from contextlib import suppress
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec
import trio

from sandkeep import failpoints
from sandkeep.errors import SandkeepError, StateError
from sandkeep.settings import docker as settings
from sandkeep.settings.daemon import DOCKER_BASE
from sandkeepd.contract import image_references
from sandkeepd.contract.caller import Caller, Progress
from sandkeepd.contract.images import Building, ImageRequest, Images, ImportedImage
from sandkeepd.contract.ledger import Ledger, Swept
from sandkeepd.host.undo import undo_on_error
from sandkeepd.providers.common.layout import Layout
from sandkeepd.providers.docker import image_probe
from sandkeepd.providers.docker.builder import Builder
from sandkeepd.providers.docker.container import LOG_LABEL
from sandkeepd.providers.docker.engine import CONFLICT, NOT_FOUND, Client, Engine, Tolerate, inspect_image, names_in
from sandkeepd.providers.docker.plan import Details
from sandkeepd.providers.docker.references import References

IMPORT_S: Final = 3600.0
"""Seconds that the making of an image may take, without the time of its build, which has a limit of its own."""

AT_ONCE: Final = 2
"""Maximum number of images of one owner that are made at once. The owner's others wait."""

MOST_PROBED: Final = 256
"""Number of images whose probed facts are cached: the same content has the same facts."""

Document = dict[str, Any]


class DockerImages(Images, Building):
    """Makes and removes images, also by Dockerfiles. See `Images` and `Building`."""

    def __init__(self, engine: Engine, layout: Layout, log_id: str) -> None:
        self._engine = engine
        self._log_id = log_id
        self._references = References(engine)
        self._builder = Builder(engine, layout, log_id, self._references)
        self._turns: WeakValueDictionary[str, trio.Semaphore] = WeakValueDictionary()
        self._making: set[str] = set()
        self._probed: dict[str, Details] = {}

    def default_base(self) -> str:
        return DOCKER_BASE()

    # Making

    async def make(self, image_id: str, request: ImageRequest, caller: Caller, progress: Progress) -> ImportedImage:
        self._making.add(image_id)
        turns = self._turns.setdefault(request.owner, trio.Semaphore(AT_ONCE))
        try:
            # Without the engine, the next start removes it.
            async with undo_on_error(self.remove, image_id, ignored=[SandkeepError]), turns:
                with trio.fail_after(IMPORT_S + (0 if request.kind == "reference" else settings.BUILD_TIME())):
                    return await self._make(image_id, request, caller, progress)
        except trio.TooSlowError:
            raise StateError("timeout", "the image was not made in time: try again later") from None
        finally:
            self._making.discard(image_id)

    async def _make(self, image_id: str, request: ImageRequest, caller: Caller, progress: Progress) -> ImportedImage:
        await self._engine.call(lambda client: client.ping())  # before anything is copied for it
        if request.kind == "reference":
            found = await self._references.require(request.source, request, caller, progress)
            await self._engine.call(
                lambda client: client.tag(found["Id"], image_references.OUR_NAME, image_id, force=True)
            )
            made, named = ImportedImage(digest=found["Id"], size_bytes=found["Size"]), request.source
        else:
            copied = await self._builder.build(image_id, request, caller, progress)
            named = tag(image_id)
            found = await self._engine.call(partial(inspect_image, name=named))
            made = msgspec.structs.replace(copied, digest=found["Id"], size_bytes=found["Size"], file_count=0)
        failpoints.reach("docker.tagged")
        known = None if request.clean else self._probed.get(made.digest)
        details = known or await self._probe(image_id, found, progress)
        return msgspec.structs.replace(made, details={**msgspec.to_builtins(details), "docker_image_tag": named})

    async def _probe(self, image_id: str, found: Document, progress: Progress) -> Details:
        await progress("inspecting the image")
        look = partial(image_probe.probe, image_id=image_id, found=found, tag=tag(image_id), log_id=self._log_id)
        details = await self._engine.call(look)
        if details.why in (None, image_probe.NO_SHELL):  # other answers may be better another time
            self._probed[details.docker_image_id] = details
            if len(self._probed) > MOST_PROBED:
                del self._probed[next(iter(self._probed))]
        return details

    async def adopt_image(self, image_id: str, source: str, progress: Progress) -> ImportedImage:
        """Make an image of one that the engine has already, by tagging it with our name."""
        self._making.add(image_id)
        try:
            async with undo_on_error(self.remove, image_id, ignored=[SandkeepError]):
                found = await self._engine.call(partial(inspect_image, name=source))
                await self._engine.call(
                    lambda client: client.tag(found["Id"], image_references.OUR_NAME, image_id, force=True)
                )
                failpoints.reach("docker.tagged")
                details = await self._probe(image_id, found, progress)
        finally:
            self._making.discard(image_id)
        told = {**msgspec.to_builtins(details), "docker_image_tag": tag(image_id)}
        return ImportedImage(digest=found["Id"], size_bytes=found["Size"], details=told)

    # Removing

    async def remove(self, image_id: str) -> None:
        """See `Images.remove`. The image goes with our name for it, unless it has another."""
        await self._builder.discard(image_id)
        await self._engine.call(partial(untag, tag=tag(image_id)))

    async def found(self) -> list[str]:
        """Return the ids of the images labelled with this log, as all built ones are."""
        return sorted(image_id for image_id, log_id in await self._engine.call(_tagged) if log_id == self._log_id)

    async def clean_up(self, ledger: Ledger) -> Swept:
        """Remove images, and their probes, that no event owns. Safe to repeat, and while images are made."""
        removed, foreign = [], []
        for image_id, log_id in await self._engine.call(_tagged):
            if ledger.owns_image(image_id) or image_id in self._making:
                continue
            if log_id == self._log_id:
                removed.append(f"image {image_id}")
                await self.remove(image_id)
            else:
                foreign.append(f"image {tag(image_id)}")
        probes = await self._engine.call(partial(_probes, log_id=self._log_id))
        for container, image_id in probes:
            if image_id not in self._making:
                removed.append(f"container {container[:12]}")
                await self._engine.call(partial(_remove_container, container=container))
        removed += await self._builder.clean_up(lambda image_id: image_id in self._making)
        return Swept(removed=removed, foreign=foreign)


def tag(image_id: str) -> str:
    """Return the engine's name for an image."""
    return f"{image_references.OUR_NAME}:{image_id}"


def untag(client: Client, tag: str) -> None:
    """Remove a name of ours from an image, which is removed with its last name. Safe to repeat."""
    with Tolerate(NOT_FOUND):
        with Tolerate(CONFLICT):
            client.remove_image(tag)
            return
        client.remove_image(tag, force=True)  # in use by another container, which needs its layers but not the name


def _tagged(client: Client) -> list[tuple[str, str | None]]:
    """Return the ids in names of ours, each with the id of the log in the image's label."""
    return names_in(client, image_references.OUR_NAME, LOG_LABEL)


def _probes(client: Client, log_id: str) -> list[tuple[str, str]]:
    label = image_probe.PROBE_LABEL
    found = client.containers(all=True, filters={"label": [label, f"{LOG_LABEL}={log_id}"]})
    return [(each["Id"], each["Labels"][label]) for each in found if not _has_label(client, each["ImageID"], label)]


def _has_label(client: Client, docker_image_id: str, label: str) -> bool:
    """Return True if an image has a label, which all its containers have then, whoever made them."""
    with Tolerate(NOT_FOUND):
        found = client.inspect_image(docker_image_id)  # type: ignore[no-untyped-call]
        return label in (found["Config"].get("Labels") or {})
    return False


def _remove_container(client: Client, container: str) -> None:
    from docker.errors import APIError

    with suppress(APIError):  # it is going already
        client.remove_container(container, force=True, v=True)
