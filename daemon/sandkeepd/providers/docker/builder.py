"""Building an image: a caller's directory, copied with the caller's rights, given to the engine.

The administrator's settings limit each build, and the control group above its containers enforces what the engine does
not: see `build_group`. The engine's cache is separated by owners: a label first in each stage names the owner, so that
nobody gets the result of a step that another has run.

While one is built, all images and containers of its steps are labelled `UNFINISHED_LABEL`. When a build fails or is
interrupted, that is how its remains are found. Another build could reuse them, so they stay while one is under way.
"""

import grp
import os
import re
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Final

import msgspec
import trio

from sandkeep import failpoints
from sandkeep.errors import CallerError, SandkeepError
from sandkeep.settings import docker
from sandkeep_store.threads import in_thread
from sandkeepd.contract import image_references
from sandkeepd.contract.caller import Caller, Progress
from sandkeepd.contract.images import ImageRequest, ImportedImage
from sandkeepd.host.cgroups.groups import PERIOD_US
from sandkeepd.providers.common.build_files import import_context, read_below
from sandkeepd.providers.common.errors import storage_errors
from sandkeepd.providers.common.layout import Layout
from sandkeepd.providers.common.packing import never_packed
from sandkeepd.providers.docker import build as docker_build
from sandkeepd.providers.docker import build_context as docker_context
from sandkeepd.providers.docker import build_group, dockerfile
from sandkeepd.providers.docker.build_group import BuildGroup
from sandkeepd.providers.docker.container import LOG_LABEL, SANDBOX_LABEL
from sandkeepd.providers.docker.dockerfile import Dockerfile, Step
from sandkeepd.providers.docker.engine import Client, Engine, RefusedError
from sandkeepd.providers.docker.plan import WORKSPACE
from sandkeepd.providers.docker.references import References
from sandkeepd.providers.docker.stream import StreamedRequest, report_from_thread

UNFINISHED_LABEL: Final = "sandkeep.unfinished"
"""Label of intermediate images; its value is the log's id. Finished images have it empty."""

BUILDER_LABEL: Final = "sandkeep.builder"
"""Label that separates the cache; its value is a digest of the owner, which may be any text."""

_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Intervals in seconds for the engine to finish an interrupted build."""

MOST_CONTEXT_BYTES: Final = 64 * 1024**3
"""Maximum size of a build context. The engine unpacks it onto its own disk, including holes."""

TREE: Final = "tree"
_OFFLINE: Final = re.compile(r"resol(?:ve|ution)|bad address|unreachable|connection|no route|network", re.IGNORECASE)
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63})?")


class Builder:
    """Builds images, and removes intermediate ones."""

    def __init__(self, engine: Engine, layout: Layout, log_id: str, references: References) -> None:
        self._engine = engine
        self._layout = layout
        self._log_id = log_id
        self._references = references
        self._building = 0
        self._unswept_since: float | None = None
        self._gate = trio.Lock()
        """Held while remains are removed: no build begins meanwhile."""

    async def build(self, image_id: str, request: ImageRequest, caller: Caller, progress: Progress) -> ImportedImage:
        """Build an image, under our name for it. Returns the description of the copied files. Raises `invalid` or
        `timeout`, with the place where a build failed, and `permission_denied`.
        """
        if request.kind == "dockerfile":
            _check_may_build(caller)
        tree = f"{self._layout.build(image_id)}/{TREE}"
        await in_thread(self._make_place, image_id)
        hide = never_packed(self._layout.state_dir)
        copied = await import_context(
            request, caller, tree, hide=hide, most_bytes=MOST_CONTEXT_BYTES, progress=progress
        )
        failpoints.reach("docker.staged")
        if request.kind == "dockerfile":
            read, ids, fresh = await self._by_dockerfile(tree, request, caller, progress)
            network = docker.BUILD_NETWORK() or docker.NETWORK()
        else:
            read, ids, fresh = await self._onto_base(request, caller, progress), dict[str, str](), request.clean
            network = "none"
        builder = sha256(request.owner.encode()).hexdigest()
        text, steps = read.marked({UNFINISHED_LABEL: self._log_id, BUILDER_LABEL: builder}, ids)
        params = {
            "nocache": "1" if fresh else "0",
            "networkmode": "default" if network in ("", "host", "bridge") else network,
        }
        pack = docker_context.of_context if request.kind == "dockerfile" else docker_context.of_directory
        await self._run(image_id, lambda: pack(tree, text), steps, params, progress)
        return copied

    async def _by_dockerfile(
        self, tree: str, request: ImageRequest, caller: Caller, progress: Progress
    ) -> tuple[Dockerfile, dict[str, str], bool]:
        """Return the Dockerfile, the ids of the images that it names, and True if the cache must not be used."""
        path = request.dockerfile or "Dockerfile"
        content = await in_thread(read_below, tree, path, dockerfile.MOST_BYTES)
        if content is None:
            raise CallerError("invalid", f"dockerfile: {path} not found under {request.source}", field="dockerfile")
        read = dockerfile.read(content)
        ids, fresh = dict[str, str](), request.clean
        for image in read.images:
            found = await self._references.require(image, request, caller, progress)
            ids[image] = found["Id"]
            _check_platform(read, image, f"{found.get('Os')}/{found.get('Architecture')}")
            triggers = (found.get("Config") or {}).get("OnBuild") or ()
            dockerfile.check_triggers(triggers, may_name_images=request.published is None)
            fresh = fresh or bool(triggers)  # they run before our label, and would be everybody's in the cache
        return read, ids, fresh

    async def _onto_base(self, request: ImageRequest, caller: Caller, progress: Progress) -> Dockerfile:
        """Return a Dockerfile of ours that puts a directory onto its base, for the user that sandboxes run as."""
        assert request.base is not None
        base = await self._references.require(request.base, request, caller, progress)
        config = base.get("Config") or {}
        if config.get("OnBuild"):
            message = f"base: {request.base} has ONBUILD instructions: use a Dockerfile"
            raise CallerError("invalid", message, field="base")
        user = docker.USER() or config.get("User") or ""
        if user and not _USER.fullmatch(user):
            raise CallerError(
                "invalid", f"base: cannot resolve the user of {request.base}: use a Dockerfile", field="base"
            )
        owner = f"--chown={user} " if user else ""
        lines = [f"FROM {base['Id']}", f"COPY {owner}{TREE}/ {WORKSPACE}/", f"WORKDIR {WORKSPACE}"]
        return dockerfile.of_ours(lines)

    async def _run(
        self,
        image_id: str,
        context: Callable[[], Generator[bytes]],
        steps: list[Step | None],
        params: dict[str, str],
        progress: Progress,
    ) -> None:
        params = {
            "t": f"{image_references.OUR_NAME}:{image_id}",
            "dockerfile": docker_context.OUR_DOCKERFILE,
            "rm": "1",
            "forcerm": "1",
            "labels": msgspec.json.encode({LOG_LABEL: self._log_id, UNFINISHED_LABEL: ""}).decode(),
            **params,
        }
        since = time.time() - 1
        async with self._gate:
            self._building += 1
        whole, group = False, None
        log = docker_build.BuildLog(steps, report_from_thread(progress))
        try:
            group = await self._open_group(image_id)
            params |= _limits(group)
            with trio.fail_after(docker.BUILD_TIME()):
                for last in (False, False, True):
                    log = docker_build.BuildLog(steps, report_from_thread(progress))
                    await self._request(params, context(), log)
                    if log.error is None:
                        break
                    if last or not log.has_lost_layer:
                        raise _explained(log, group, offline=params["networkmode"] == "none")
            whole = True
        except trio.TooSlowError:
            raise log.too_long(f"{docker.BUILD_TIME():.0f} s ({docker.BUILD_TIME.name})") from None
        finally:
            self._building -= 1
            if not whole:
                self._unswept_since = min(since, self._unswept_since or since)
            with trio.CancelScope(shield=True):
                await self._clear(group, () if whole else _PAUSES_S)
            await self.discard(image_id)

    async def _request(self, params: dict[str, str], context: Generator[bytes], log: docker_build.BuildLog) -> None:
        headers = {"Content-Type": "application/x-tar"}
        try:
            await StreamedRequest("/build", params, log.receive, context, lambda _: headers).run(self._engine)
        except RefusedError as refused:
            raise log.refusal_error(refused.reason) from None

    async def _open_group(self, image_id: str) -> BuildGroup | None:
        """Make the control group of a build; None where processes cannot be limited."""
        found = await self._engine.call(lambda client: client.info())
        if build_group.why_missing(found, root=os.geteuid() == 0) is not None:
            return None
        group = BuildGroup(f"{self._log_id}.{image_id}", found["CgroupDriver"])
        await in_thread(group.open)
        return group

    # Clean-up

    def _make_place(self, image_id: str) -> None:
        self._layout.prepare()
        with storage_errors():
            os.makedirs(self._layout.build(image_id), mode=0o700)

    async def discard(self, image_id: str) -> None:
        """Remove the build context of an image. Safe to repeat."""
        with trio.CancelScope(shield=True):
            await in_thread(self._layout.discard, [self._layout.build(image_id)])

    async def _clear(self, group: BuildGroup | None, pauses_s: Sequence[float]) -> None:
        """End all that a build has left running, also without the engine, and remove its remains."""
        if group is not None:
            with suppress(SandkeepError):
                await in_thread(group.kill)
        with suppress(SandkeepError):  # without the engine, the next start does it
            await self._sweep(pauses_s)
        if group is not None:
            with suppress(SandkeepError):
                await in_thread(group.close)

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
        for image_id in await in_thread(self._layout.builds):
            if not is_making(image_id):
                await self.discard(image_id)
        for group in await in_thread(build_group.left_over, self._log_id):
            if not is_making(group.name.rpartition(".")[2]):
                await self._clear(group, ())
        async with self._gate:
            if self._building:
                return []
            removed, _ = await self._engine.call(partial(_remove_unfinished, log_id=self._log_id, since=0.0))
            return list(removed)


def _check_may_build(caller: Caller) -> None:
    """Raise `permission_denied` unless the administrator lets this caller build."""
    allowed = docker.BUILDERS()
    if allowed == "all" or (allowed != "none" and (caller.uid in (0, os.geteuid()) or _is_member(caller, allowed))):
        return
    who = "nobody" if allowed == "none" else f"only root and the group {allowed}"
    message = f"source: {who} may build from a Dockerfile, as the administrator set {docker.BUILDERS.name}"
    raise CallerError("permission_denied", message, field="source")


def _is_member(caller: Caller, group: str) -> bool:
    try:
        return grp.getgrnam(group).gr_gid in (caller.gid, *caller.groups)
    except KeyError:
        return False


def _check_platform(read: Dockerfile, image: str, platform: str) -> None:
    """Raise `invalid` if a FROM wants an image for another platform: the engine would take this one."""
    for name, wanted in read.platforms:
        if name == image and not f"{wanted}/".startswith(f"{platform}/"):
            message = f"Dockerfile: {image} is here for {platform}, not for {wanted}: leave --platform out"
            raise CallerError("invalid", message, field="dockerfile")


def _limits(group: BuildGroup | None) -> dict[str, str]:
    """Return the engine's parameters that limit each step. BuildKit takes none of them."""
    memory = str(docker.BUILD_MEMORY() + (build_group.SPARE_BYTES if group else 0))
    limits = {
        "version": "1",  # the classic builder; an engine without it refuses
        "memory": memory,
        "memswap": memory,
        "cpuperiod": str(PERIOD_US),
        "cpuquota": str(int(docker.BUILD_CPUS() * PERIOD_US)),
        "ulimits": msgspec.json.encode([{"Name": "core", "Soft": 0, "Hard": 0}]).decode(),
    }
    return {**limits, "cgroupparent": group.parent} if group else limits


def _explained(log: docker_build.BuildLog, group: BuildGroup | None, *, offline: bool) -> SandkeepError:
    """Return the error of a build, with the limit that it has reached."""
    error, why = log.error, None
    assert error is not None
    if not isinstance(error, CallerError):
        return error
    if group is not None:
        why = group.reached(log.tail)
    if why is None and offline and _OFFLINE.search(log.tail):
        why = f"without a network (see {docker.BUILD_NETWORK.name})"
    if why is None:
        return error
    first, newline, rest = error.message.partition("\n")
    return CallerError(error.code, f"{first}, {why}{newline}{rest}", **error.data)


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
        if found["Created"] >= since and SANDBOX_LABEL not in found["Labels"]:  # of an image with such a label
            what = f"container {found['Id'][:12]}"
            remove(what, partial(client.remove_container, found["Id"], force=True, v=True))
    for found in client.images(filters={"label": marks, "dangling": True}):
        if found["Created"] >= since:
            what = f"image {found['Id'].removeprefix('sha256:')[:12]}"
            remove(what, partial(client.remove_image, found["Id"]))
    return removed, not refused
