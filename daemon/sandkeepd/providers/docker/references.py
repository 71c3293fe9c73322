"""References of container images, resolved to images of the engine that the caller may use.

An engine's images have no owners, so the engine would give everybody what its administrator built or pulled. Here an
administrator may use all of them. For anybody else an image counts only if

- an administrator has published it to the owner, by this reference, or has set it as the default base; or
- its registry is one of `REGISTRIES`, and, asked by the engine with the caller's own login or with none, says that the
  reference means it: by the digest that the registry answers the engine has it from there, or pulls it.

A registry that refuses, or cannot be reached, is never replaced by what is here. All refusals have one code and one
sentence, whether or not there is such an image here.
"""

import pwd
import re
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec
import trio

from sandkeep.errors import CallerError, SandkeepError
from sandkeep.settings.daemon import DOCKER_BASE
from sandkeep_store.threads import in_thread
from sandkeepd.contract import image_references
from sandkeepd.contract.caller import Caller, Progress
from sandkeepd.contract.image_references import Reference
from sandkeepd.contract.images import ImageRequest
from sandkeepd.host import caller_paths
from sandkeepd.host.registries import require_listed
from sandkeepd.providers.docker import build
from sandkeepd.providers.docker.engine import NOT_FOUND, Client, Engine, RefusedError, Tolerate, inspect_image
from sandkeepd.providers.docker.stream import StreamedRequest, report_from_thread

REGISTRY_S: Final = 60
"""Seconds that a registry may take to say what a reference means."""

SILENCE_S: Final = 300.0
"""Seconds without a sign of progress after which a pull is given up; of large layers the engine tells every second."""

LOGINS: Final = ".docker/config.json"
_MOST_LOGINS_BYTES: Final = 64 * 1024
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_UNREACHABLE: Final = "cannot be reached"
_UNGIVEN: Final = "has no such image for you"

Document = dict[str, Any]
Login = dict[str, Any]
"""A login at a registry, as the engine takes it; empty for none. It is never logged or recorded."""


class References:
    """Resolves references for the callers of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._turns: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()

    async def require(self, reference: str, request: ImageRequest, caller: Caller, progress: Progress) -> Document:
        """Return the engine's document about the image that a reference means to a request's caller.

        Raises `not_found`, and `permission_denied` for a registry that is for administrators only; for an administrator
        also `permission_denied` and `provider_unavailable`, of the registry.
        """
        wanted = image_references.parse(reference, "source")
        if request.published is None or _is_default_base(wanted):
            return await self._of_engine(wanted, request, progress)
        digest = request.published.get(wanted.in_full)
        if digest is not None:
            return await self._engine.call(partial(inspect_image, name=digest))
        await require_listed(wanted.in_full)
        return await self._of_registry(wanted, await _login_of(wanted.domain, request, caller), request, progress)

    async def _of_engine(self, wanted: Reference, request: ImageRequest, progress: Progress) -> Document:
        """Return the image that the engine has, which is pulled if it is missing; a clean one also if it came from a
        registry, which need not be reachable then.
        """
        found = await self._known(wanted.in_full)
        if found is None or (request.clean and found.get("RepoDigests")):
            try:
                await self._pull(wanted, request, progress)
            except SandkeepError as error:
                if found is None:
                    raise
                await progress(f"using the engine's copy of {wanted.in_full}: {error.message}")
            found = await self._known(wanted.in_full)
        if found is None:
            raise build.pull_error(wanted.in_full, "not found")
        return found

    async def _of_registry(
        self, wanted: Reference, login: Login, request: ImageRequest, progress: Progress
    ) -> Document:
        """Return the image that the registry gives to that login. Raises `not_found`."""
        await progress(f"asking the registry of {wanted.in_full}")
        pinned = wanted._replace(tag=None, digest=await self._digest(wanted, login))
        async with self._turns.setdefault(wanted.name, trio.Lock()):
            found = await self._from(pinned)
            if found is None:
                try:
                    found = await self._given(pinned, login, request, progress)
                except SandkeepError as error:
                    if "engine" in error.data:  # it is down
                        raise
                    raise _refusal(wanted, _why(error)) from None
        if found is None:
            raise _refusal(wanted, _UNGIVEN)
        return found

    async def _given(
        self, pinned: Reference, login: Login, request: ImageRequest, progress: Progress
    ) -> Document | None:
        """Pull an image, and return it; None if the registry only named one that the engine had from elsewhere."""
        elsewhere = await self._engine.call(partial(_ids_without, name=pinned.name))
        found = None
        try:
            await self._pull(pinned, request, progress, login)
        finally:
            with trio.CancelScope(shield=True):
                found = await self._from(pinned)
                if found is not None and found["Id"] in elsewhere:
                    # A manifest names its image by an id. An engine that has that image asks the registry for none of
                    # its content: so nothing was given, and the registry must not count as the image's origin later.
                    await self._engine.call(partial(_remove_name, name=pinned.in_full))
                    found = None
        return found

    async def _digest(self, wanted: Reference, login: Login) -> str:
        """Ask the registry for the digest that a reference means. Raises `not_found`."""
        try:
            digest = await self._engine.stream(partial(_ask_registry, reference=wanted.in_full, login=login))
        except RefusedError as refused:
            raise _refusal(wanted, _why(build.pull_error(wanted.in_full, refused.reason))) from None
        if not _DIGEST.fullmatch(digest) or wanted.digest not in (None, digest):
            raise _refusal(wanted, _UNGIVEN)
        return digest

    async def _from(self, pinned: Reference) -> Document | None:
        """Return the image that the engine has from a registry by that digest."""
        found = await self._known(pinned.in_full)
        return found if found is not None and pinned.in_full in (found.get("RepoDigests") or ()) else None

    async def _known(self, name: str) -> Document | None:
        try:
            return await self._engine.call(lambda client: client.inspect_image(name))  # type: ignore[no-untyped-call]
        except RefusedError as refused:
            if refused.status == NOT_FOUND:
                return None
            raise

    async def _pull(
        self, wanted: Reference, request: ImageRequest, progress: Progress, login: Login | None = None
    ) -> None:
        """Pull an image with a login, None for the stored one of the daemon's user.

        The engine itself takes from a registry whatever that sends, for as long as it sends.
        """
        await progress(f"pulling {wanted.in_full}")
        log = build.PullLog(wanted.in_full, report_from_thread(progress), request.check_size)
        params = {"fromImage": wanted.name, "tag": wanted.digest or wanted.tag or "latest"}
        headers = partial(_headers, name=wanted.name, login=login)
        try:
            pull = StreamedRequest("/images/create", params, log.receive, headers=headers)
            is_heard = await pull.run_while_heard(self._engine, SILENCE_S)
        except RefusedError as refused:
            raise build.pull_error(wanted.in_full, refused.reason) from None
        if not is_heard:
            raise build.pull_error(wanted.in_full, f"nothing came of it for {SILENCE_S:.0f} s")
        if log.error is not None:
            raise build.pull_error(wanted.in_full, log.error)


def _is_default_base(wanted: Reference) -> bool:
    return DOCKER_BASE.is_set and wanted == image_references.parse(DOCKER_BASE(), DOCKER_BASE.name)


async def _login_of(registry: str, request: ImageRequest, caller: Caller) -> Login:
    """Return the caller's own login at a registry, from the file that ``docker login`` writes. Helper programs that it
    may name are not run. API keys have no home directory, and so no login.
    """
    from docker import auth

    if request.owner != f"uid:{caller.uid}":
        return {}
    try:
        home = (await in_thread(pwd.getpwuid, caller.uid)).pw_dir
        content = await caller_paths.read_file(f"{home}/{LOGINS}", caller, _MOST_LOGINS_BYTES)
        logins = msgspec.json.decode(content, type=dict[str, Any]).get("auths") or {}
        known = {name: login for name, login in logins.items() if auth.resolve_index_name(name) == registry}
        return auth.AuthConfig({"auths": auth.parse_auth(known)}).resolve_authconfig(registry) or {}
    except (KeyError, ValueError, AttributeError, TypeError, CallerError):  # no account, no file, or a malformed one
        return {}


def _headers(client: Client, name: str, login: Login | None) -> dict[str, str]:
    """Return the header for a login at a registry; None is the stored one of the daemon's user."""
    from docker import auth

    if login is not None:
        return {"X-Registry-Auth": auth.encode_header(login).decode()}
    registry, _ = auth.resolve_repository_name(name)
    header = auth.get_config_header(client, registry)
    return {"X-Registry-Auth": header.decode()} if header else {}


def _ask_registry(client: Client, reference: str, login: Login) -> str:
    """Return a registry's digest for a reference, by the engine. Blocks. An empty login is none, not the daemon's."""
    import requests

    client.timeout = REGISTRY_S
    try:
        found = client.inspect_distribution(reference, auth_config=login)  # type: ignore[no-untyped-call]
        return str(found["Descriptor"]["digest"])
    except requests.Timeout:
        raise RefusedError(504, _UNREACHABLE) from None


def _ids_without(client: Client, name: str) -> set[str]:
    """Return the ids of the engine's images that it has not had from the repository `name`. Blocks."""
    return {
        image["Id"]
        for image in client.images(all=True)
        if not any(digest.startswith(f"{name}@") for digest in image.get("RepoDigests") or ())
    }


def _remove_name(client: Client, name: str) -> None:
    with Tolerate(NOT_FOUND):
        client.remove_image(name)


def _why(error: SandkeepError) -> str:
    """Return the reason of a refusal. The engine's own words may be of hosts that the caller cannot reach."""
    return _UNREACHABLE if error.code == "provider_unavailable" else _UNGIVEN


def _refusal(wanted: Reference, why: str) -> CallerError:
    message = (
        f"you cannot use {wanted.in_full}: its registry {why}, and no administrator has published it to you: ask "
        f"one for `sandkeep image publish {wanted.in_full}`; a user with an account there can `docker login`"
    )
    return CallerError("not_found", message, field="source", reference=wanted.in_full)
