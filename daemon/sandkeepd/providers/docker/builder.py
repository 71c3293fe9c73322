"""Building an image: a caller's directory, copied with the caller's rights, given to the engine.

While one is built, all images and containers of its steps are labelled `UNFINISHED_LABEL`. When a build fails or is
interrupted, that is how its remains are found. Another build could reuse them, so they stay while one is under way.
"""

import os
import re
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec
import trio

from sandkeep import failpoints
from sandkeep.errors import CallerError, SandkeepError
from sandkeep.settings import docker
from sandkeepd.contract import image_references
from sandkeepd.contract.caller import Caller, Progress
from sandkeepd.contract.images import ImageRequest, ImportedImage
from sandkeepd.host.caller_paths import import_tree
from sandkeepd.providers.common.errors import storage_errors
from sandkeepd.providers.common.layout import Layout
from sandkeepd.providers.docker import build as docker_build
from sandkeepd.providers.docker import build_context as docker_context
from sandkeepd.providers.docker import dockerfile
from sandkeepd.providers.docker.container import LOG_LABEL
from sandkeepd.providers.docker.dockerfile import Step
from sandkeepd.providers.docker.engine import Client, Engine, RefusedError
from sandkeepd.providers.docker.plan import WORKSPACE
from sandkeepd.providers.docker.stream import StreamedRequest, report_from_thread

UNFINISHED_LABEL: Final = "sandkeep.unfinished"
"""Label of intermediate images; its value is the log's id. Finished images have it empty."""

_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Intervals in seconds for the engine to finish an interrupted build."""

MOST_CONTEXT_BYTES: Final = 64 * 1024**3
"""Maximum size of a build context. The engine unpacks it onto its own disk, including holes."""

TREE: Final = "tree"
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63})?")


class Builder:
    """Builds images, and removes intermediate ones. `require_image` is `DockerImages.require_image`."""

    def __init__(
        self, engine: Engine, layout: Layout, log_id: str, require_image: Callable[..., Awaitable[dict[str, Any]]]
    ) -> None:
        self._engine = engine
        self._layout = layout
        self._log_id = log_id
        self._require_image = require_image
        self._building = 0
        self._unswept_since: float | None = None
        self._gate = trio.Lock()
        """Held while remains are removed: no build begins meanwhile."""

    async def build(self, image_id: str, request: ImageRequest, caller: Caller, progress: Progress) -> ImportedImage:
        """Build an image, under our name for it. Returns the description of the copied files. Raises `invalid`, with
        the place where a build failed.
        """
        tree = f"{self._layout.build(image_id)}/{TREE}"
        await trio.to_thread.run_sync(self._make_place, image_id)
        copied = await import_tree(
            request.source, caller, tree, owner=None, hide=self._layout.state_dir, progress=progress
        )
        failpoints.reach("docker.staged")
        if copied.size_bytes > MOST_CONTEXT_BYTES:
            message = (
                f"source: {request.source} has more than {MOST_CONTEXT_BYTES >> 30} GiB: choose a smaller directory"
            )
            raise CallerError("invalid", message, field="source")
        if request.kind == "dockerfile":
            text, steps = await self._by_dockerfile(tree, request, progress)
            await self._run(image_id, partial(docker_context.of_context, tree, text), steps, request, progress)
        else:
            text, steps = await self._onto_base(request, progress)
            await self._run(image_id, partial(docker_context.of_directory, tree, text), steps, request, progress)
        return copied

    async def _by_dockerfile(
        self, tree: str, request: ImageRequest, progress: Progress
    ) -> tuple[str, list[Step | None]]:
        path = request.dockerfile or "Dockerfile"
        content = await trio.to_thread.run_sync(docker_context.read_below, tree, path, dockerfile.MOST_BYTES)
        if content is None:
            raise CallerError("invalid", f"dockerfile: {path} is no file below {request.source}", field="dockerfile")
        offline = docker.NETWORK() == "none"
        read = dockerfile.read(content, offline=offline)
        for image in read.images:
            found = await self._require_image(image, progress, anew=request.clean)
            dockerfile.check_triggers((found.get("Config") or {}).get("OnBuild") or (), offline=offline)
        return read.marked(UNFINISHED_LABEL, self._log_id)

    async def _onto_base(self, request: ImageRequest, progress: Progress) -> tuple[str, list[Step | None]]:
        """Return a Dockerfile of ours that puts a directory onto its base, for the user that sandboxes run as."""
        assert request.base is not None
        base = await self._require_image(request.base, progress, anew=request.clean)
        config = base.get("Config") or {}
        if config.get("OnBuild"):
            message = f"base: {request.base} says what is to be done with a directory (ONBUILD): use a Dockerfile"
            raise CallerError("invalid", message, field="base")
        user = docker.USER() or config.get("User") or ""
        if user and not _USER.fullmatch(user):
            raise CallerError("invalid", f"base: the user of {request.base} is not understood", field="base")
        owner = f"--chown={user} " if user else ""
        lines = [f"FROM {base['Id']}", f"COPY {owner}{TREE}/ {WORKSPACE}/", f"WORKDIR {WORKSPACE}"]
        return dockerfile.of_ours(lines).marked(UNFINISHED_LABEL, self._log_id)

    async def _run(
        self,
        image_id: str,
        context: Callable[[], Generator[bytes]],
        steps: list[Step | None],
        request: ImageRequest,
        progress: Progress,
    ) -> None:
        network = "none" if request.kind == "directory" else docker.NETWORK()
        params = {
            "t": f"{image_references.OUR_NAME}:{image_id}",
            "dockerfile": docker_context.OUR_DOCKERFILE,
            "rm": "1",
            "forcerm": "1",
            "nocache": "1" if request.clean else "0",
            "networkmode": "default" if network in ("", "host") else network,
            "labels": msgspec.json.encode({LOG_LABEL: self._log_id, UNFINISHED_LABEL: ""}).decode(),
        }
        headers = {"Content-Type": "application/x-tar"}
        since = time.time() - 1
        async with self._gate:
            self._building += 1
        whole = False
        try:
            for last in (False, False, True):
                log = docker_build.BuildLog(steps, report_from_thread(progress))
                try:
                    await StreamedRequest("/build", params, log.receive, context(), lambda _: headers).run(self._engine)
                except RefusedError as refused:
                    raise log.refusal_error(refused.reason) from None
                if log.error is None:
                    break
                if last or not log.has_lost_layer:
                    raise log.error
            whole = True
        finally:
            self._building -= 1
            if not whole:
                self._unswept_since = min(since, self._unswept_since or since)
            with trio.CancelScope(shield=True), suppress(SandkeepError):  # without the engine, the next start does it
                await self._sweep(() if whole else _PAUSES_S)
            await self.discard(image_id)

    # Clean-up

    def _make_place(self, image_id: str) -> None:
        self._layout.prepare()
        with storage_errors():
            os.makedirs(self._layout.build(image_id), mode=0o700)

    async def discard(self, image_id: str) -> None:
        """Remove the build context of an image. Safe to repeat."""
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._layout.discard, [self._layout.build(image_id)])

    async def _sweep(self, pauses_s: Sequence[float]) -> None:
        """Remove the remains of failed builds, unless another build is running, which then removes them.

        The engine removes the container of an interrupted step, too. While it does, neither that container nor its
        image can be removed: the removal is retried after these pauses, and then at the end of the next build.
        """
        for pause_s in (0.0, *pauses_s):
            await trio.sleep(pause_s)  # the engine sends no event when it has finished
            async with self._gate:
                if self._unswept_since is None or self._building:
                    return
                work = partial(_remove_unfinished, log_id=self._log_id, since=self._unswept_since)
                _, all_gone = await self._engine.call(work)
                if all_gone:
                    self._unswept_since = None
                    return

    async def clean_up(self, is_making: Callable[[str], bool]) -> list[str]:
        """Remove the remains of an earlier daemon's builds; return sentences about them."""
        for image_id in await trio.to_thread.run_sync(self._layout.builds):
            if not is_making(image_id):
                await self.discard(image_id)
        async with self._gate:
            if self._building:
                return []
            removed, _ = await self._engine.call(partial(_remove_unfinished, log_id=self._log_id, since=0.0))
            return list(removed)


def _remove_unfinished(client: Client, log_id: str, since: float) -> tuple[list[str], bool]:
    """Remove the containers and images of builds that were begun since then and not finished. Images that are used, or
    have a name, stay. Returns the removed objects, and True if nothing is left. Blocks.
    """
    from docker.errors import APIError, NotFound

    removed, refused = list[str](), list[str]()
    marks = [f"{UNFINISHED_LABEL}={log_id}"]

    def remove(what: str, how: Callable[[], object]) -> None:
        try:
            how()
            removed.append(what)
        except NotFound:  # it has gone with another
            pass
        except APIError:  # it is in use
            refused.append(what)

    for found in client.containers(all=True, filters={"label": marks}):
        if found["Created"] >= since:
            what = f"container {found['Id'][:12]}"
            remove(what, partial(client.remove_container, found["Id"], force=True, v=True))
    for found in client.images(filters={"label": marks, "dangling": True}):
        if found["Created"] >= since:
            what = f"image {found['Id'].removeprefix('sha256:')[:12]}"
            remove(what, partial(client.remove_image, found["Id"]))
    return removed, not refused
