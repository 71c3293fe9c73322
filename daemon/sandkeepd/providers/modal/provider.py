"""The Modal provider: sandboxes of modal.com.

`sdk` is Modal's own SDK, which runs in a loop of its own (`loop`); `service` makes requests of tasks of trio. In each
sandbox a keeper runs the processes, as everywhere: it is the sandbox's first command, and one exec that stays open
carries its requests and journals to a mirror in the state directory. `plan` decides on a sandbox, `sandbox` runs
commands in it. See `contract.provider` for the interface, and `errors` for how the SDK's errors are told.
"""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import msgspec
import trio
from msgspec.structs import replace

from sandkeep import failpoints
from sandkeep.errors import CallerError, ProviderError, SandkeepError, StateError
from sandkeep.kubernetes.names import label_value
from sandkeep.model import Isolation, ProviderCapabilities, SandboxSpec
from sandkeep.settings import modal as settings
from sandkeepd.contract.caller import Caller
from sandkeepd.contract.instance import Ending
from sandkeepd.contract.ledger import Ledger, Swept
from sandkeepd.keeper import program
from sandkeepd.keeper.watcher import Watcher
from sandkeepd.providers.common.inside import MARK, WORKSPACE
from sandkeepd.providers.common.keeper_provider import running
from sandkeepd.providers.common.relayed_provider import RelayedProvider
from sandkeepd.providers.common.remote import readable
from sandkeepd.providers.modal import plan as modal_plan
from sandkeepd.providers.modal import probe
from sandkeepd.providers.modal.files import ModalLayers, ModalSnapshots
from sandkeepd.providers.modal.images import ModalImages
from sandkeepd.providers.modal.plan import MOST_LIFETIME_S, Plan
from sandkeepd.providers.modal.sandbox import Handle, ModalInstance, ModalRemote, first_argv
from sandkeepd.providers.modal.sdk import Account, Result, Sdk, Seen
from sandkeepd.providers.modal.service import ANSWER_S, Service

HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}")
SANDBOX_TAG: Final = "sandkeep-sandbox"
LOG_TAG: Final = "sandkeep-log"
OWNER_TAG: Final = "sandkeep-owner"
SESSION_TAG: Final = "sandkeep-session"

LISTED_S: Final = 2.0
"""Seconds for which a list is used again: a daemon that starts adopts all its sandboxes by one."""


class ModalProvider(RelayedProvider[ModalInstance]):
    """See `Provider`. It runs tasks of its own, so `open_modal` makes it."""

    name = "modal"
    longest_lifetime_s: float | None = MOST_LIFETIME_S

    def __init__(
        self, state_dir: str, log_id: str, watcher: Watcher, nursery: trio.Nursery, *, service: Service
    ) -> None:
        super().__init__(state_dir, log_id, watcher, nursery, service)
        self.service = service
        self.images = self.builder = ModalImages(service, self.layout)
        self.snapshots = ModalSnapshots(self, service)
        self.layers = self._layers = ModalLayers(self, service)
        self._listing = trio.Lock()
        self._listed: tuple[float, list[Seen]] = (-LISTED_S, [])

    # Sandboxes

    def plan(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, caller: Caller, taken: Sequence[dict[str, Any]], *,
        details: Mapping[str, Any], owner: str = "",
    ) -> dict[str, Any]:  # fmt: skip
        self.layout.sandbox(sandbox_id)  # raises `invalid`
        return dict(msgspec.to_builtins(modal_plan.decide(owner, spec, details)))

    async def create(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, secrets: Mapping[str, str], plan: dict[str, Any]
    ) -> ModalInstance:
        decided = msgspec.convert(plan, Plan)
        return await self._undone_on_error(sandbox_id, lambda: self._create(sandbox_id, spec, decided, secrets), plan)

    async def _create(
        self, sandbox_id: str, spec: SandboxSpec, plan: Plan, secrets: Mapping[str, str]
    ) -> ModalInstance:
        plan = await self._image_for(plan)
        workspace_name = await self.service.call(Sdk.workspace)
        await self.in_thread(self._make_mirror, sandbox_id)
        modal_id, sandbox = await self._make(sandbox_id, spec, plan, sorted(secrets))
        failpoints.reach("modal.made")
        place = Handle(
            modal_sandbox_id=modal_id, workspace_name=workspace_name, app=settings.APP(),
            environment=(await self.service.sdk()).environment, secrets=sorted(secrets), name=modal_id,
            ssh_address=await self._ssh_address(sandbox) if plan.ssh else None,
        )  # fmt: skip
        instance = self._hold(sandbox_id, spec, _isolation(plan), place, sandbox)
        await self._require_alive(instance, settings.START_S())
        await instance.share_secrets(secrets)
        failpoints.reach("modal.secrets")
        if plan.layers:
            await self._layers.send(instance, WORKSPACE, [layer.name for layer in plan.layers])
        return instance

    async def _image_for(self, plan: Plan) -> Plan:
        """Return the plan as it is carried out: with an image of its kept files, or with these."""
        names = [layer.name for layer in plan.layers]
        if plan.snapshot_image_id is None or all([await self._layers.has_layer(name) for name in names]):
            return plan
        return replace(plan, modal_image_id=plan.snapshot_image_id, layers=[])

    async def _make(self, sandbox_id: str, spec: SandboxSpec, plan: Plan, secrets: Sequence[str]) -> tuple[str, Any]:
        """Make the sandbox at Modal, or return the one that an earlier attempt made."""
        argv = first_argv(program.read(modal_plan.MACHINE), sandbox_id, empties=bool(plan.layers))
        wanted = {
            "name": sandbox_id, "tags": self._tags(sandbox_id, spec, plan), "env": _environment(spec, secrets),
            **modal_plan.options(plan),
        }  # fmt: skip
        try:
            sandbox = await self.service.finish(  # given up in between, it might be made after it was looked for
                lambda sdk: sdk.create(argv, plan.modal_image_id, **wanted), settings.START_S()
            )
        except StateError as error:
            found = await self._own(sandbox_id) if error.code == "conflict" else []
            if not found:
                raise
            return found[0], await self.service.call(lambda sdk: sdk.attach(found[0]))
        except CallerError as error:
            if error.code != "not_found":
                raise
            (await self.service.sdk()).forget_app()
            message = f"Modal no longer has the app or the image: {error.message}: make the image again with --clean"
            raise CallerError("not_found", message) from None
        return sandbox.object_id, sandbox

    async def _ssh_address(self, sandbox: Any) -> str:
        """Return the public address of a sandbox's SSH server. Users give it to their SSH clients."""
        seconds, port = settings.START_S(), modal_plan.SSH_PORT
        host, public = await self.service.call(lambda sdk: sdk.tunnel(sandbox, port, seconds), seconds + ANSWER_S)
        if not HOST.fullmatch(host) or not 0 < public < 65536:
            message = f"Modal gave an invalid address for SSH: {readable(host)}:{public}"
            raise ProviderError("provider_unavailable", message)
        return f"{host}:{public}"

    def _tags(self, sandbox_id: str, spec: SandboxSpec, plan: Plan) -> dict[str, str]:
        tags = {SANDBOX_TAG: sandbox_id, LOG_TAG: self.log_id, OWNER_TAG: label_value(plan.owner)}
        if spec.session_id is not None:
            tags[SESSION_TAG] = label_value(spec.session_id)
        return {name: value for name, value in tags.items() if value}

    def _hold(
        self, sandbox_id: str, spec: SandboxSpec, isolation: Isolation, place: Handle, sandbox: Any
    ) -> ModalInstance:
        """Hold a sandbox, and follow it, until it is released."""
        instance = ModalInstance(
            sandbox_id, self.files(sandbox_id), self._watcher, place=place, relay=self._relay(sandbox_id),
            remote=ModalRemote(self.service, sandbox, place.modal_sandbox_id, sandbox_id),
            nursery=self.nursery, isolation=isolation, handle=msgspec.to_builtins(place),
            env={MARK: sandbox_id, **_environment(spec, place.secrets)},
            working_dir=spec.directory(place.workspace),
        )  # fmt: skip
        self._hold_relayed(instance)
        return instance

    async def _await_end(self, instance: ModalInstance) -> Ending:
        """Wait until a sandbox has ended. Modal is asked only when the channel broke: idle sandboxes cost no calls."""
        while True:
            await instance.broke.wait()
            try:
                return await self._why_ended(instance)
            except _RunsError:
                continue
            except SandkeepError:
                await self.service.recovered()

    async def _why_ended(self, instance: ModalInstance) -> Ending:
        """Return why a sandbox ended. Raises `_RunsError` if it did not."""
        try:
            result = await self.service.call(lambda sdk: sdk.result_of(instance.place.modal_sandbox_id))
        except CallerError as error:
            if error.code != "not_found":
                raise
            await self._require_workspace(instance.place)
            return Ending(kind="lost", message="Modal does not have it any more")
        if result is None:
            raise _RunsError
        return ending_of(result)

    async def _require_workspace(self, place: Handle) -> None:
        """Raise `provider_unavailable` if the token is for another workspace than the one that has a sandbox."""
        now = await self.service.call(Sdk.workspace)
        if now != place.workspace_name:
            message = (
                f"the sandbox is in Modal's workspace {place.workspace_name!r}, and the token for {now!r}: give the "
                f"daemon a token of {place.workspace_name!r}"
            )
            raise ProviderError("provider_unavailable", message)

    async def adopt(
        self, sandbox_id: str, spec: SandboxSpec, plan: dict[str, Any], isolation: Isolation, handle: dict[str, Any]
    ) -> ModalInstance | Ending | None:
        place = msgspec.convert(handle, Handle)
        modal_id = place.modal_sandbox_id
        if modal_id not in {seen.modal_id for seen in await self._running()}:
            try:
                result = await self.service.call(lambda sdk: sdk.result_of(modal_id))
            except CallerError as error:
                if error.code != "not_found":
                    raise
                await self._require_workspace(place)
                return None
            if result is not None:
                return None if result.status == TERMINATED else ending_of(result)
        sandbox = await self.service.call(lambda sdk: sdk.attach(modal_id))
        instance = await self._hold_earlier(lambda: self._hold(sandbox_id, spec, isolation, place, sandbox))
        if instance is not None:
            self.nursery.start_soon(instance.take_over)  # not waited for: the channel may be down
        return instance

    async def terminate(self, sandbox_id: str, plan: dict[str, Any], handle: dict[str, Any]) -> None:
        self._mark_terminated(sandbox_id)
        if handle:
            place = msgspec.convert(handle, Handle)
            found = [place.modal_sandbox_id]
            if self.instances.get(sandbox_id) is None:  # a token of another workspace would end nothing
                await self._require_workspace(place)
        else:
            found = await self._own(sandbox_id)
        await self._end(sandbox_id, found)

    async def _end(self, sandbox_id: str, modal_ids: Sequence[str]) -> None:
        for modal_id in modal_ids:
            await self.service.call(partial(Sdk.terminate, modal_id=modal_id), ENDED_S)
        self._listed = (-LISTED_S, [])  # it is not to be adopted from there
        failpoints.reach("modal.ended")
        await self.await_end(sandbox_id)
        await self.in_thread(self.layout.clear, sandbox_id)

    async def _own(self, sandbox_id: str) -> list[str]:
        """Return the ids at Modal of the sandboxes that were made for one of ours; by its name, as lists lag behind."""
        tags = {SANDBOX_TAG: sandbox_id, LOG_TAG: self.log_id}
        found = await self.service.call(lambda sdk: sdk.named(sandbox_id))
        return [seen.modal_id for seen in found if tags.items() <= seen.tags.items()]

    # All that there is

    async def capabilities(self) -> ProviderCapabilities:
        return self._with_watches(await probe.capabilities(self.name, self.service))

    async def _running(self) -> list[Seen]:
        """Return the sandboxes of this log that run at Modal, as at most `LISTED_S` ago."""
        async with self._listing:
            at, found = self._listed
            if trio.current_time() - at > LISTED_S:
                found = await self.service.call(lambda sdk: sdk.running({LOG_TAG: self.log_id}))
                self._listed = trio.current_time(), found
        return found

    async def found(self) -> tuple[list[str], list[str]]:
        seen = await self.service.call(lambda sdk: sdk.running({LOG_TAG: self.log_id}))
        return sorted({each.tags[SANDBOX_TAG] for each in seen if SANDBOX_TAG in each.tags}), []

    async def clean_up(self, ledger: Ledger) -> Swept:
        """See `Provider.clean_up`. An account that only its user's own tools know is not used without need."""
        await self.images.clean_up()
        if not self.service.is_named and not ledger.plans():
            return Swept()
        removed, foreign, failures = dict[str, None](), dict[str, None](), list[SandkeepError]()
        for seen in await self.service.call(lambda sdk: sdk.running({})):
            sandbox_id, log_id = seen.tags.get(SANDBOX_TAG), seen.tags.get(LOG_TAG)
            if sandbox_id is None or log_id != self.log_id:
                what = f"sandbox {readable(sandbox_id)} of log {readable(log_id)}" if sandbox_id else "a sandbox"
                foreign[f"{what}: {readable(seen.modal_id)} at Modal"] = None
            elif not ledger.owns_sandbox(sandbox_id):  # asked last, as sandboxes are made meanwhile
                try:
                    self.layout.sandbox(sandbox_id)  # a tag is anybody's in the workspace
                    await self._end(sandbox_id, [seen.modal_id])
                    removed[f"sandbox {sandbox_id}"] = None
                except SandkeepError as error:  # it keeps no other from being removed
                    failures.append(error)
        if failures:
            raise failures[0]
        return Swept(removed=[*removed], foreign=[*foreign])


ENDED_S: Final = 60.0
"""Seconds that the end of a sandbox may take."""


class _RunsError(Exception):
    """Raised where the end of a sandbox is asked for that runs."""


def _environment(spec: SandboxSpec, secrets: Sequence[str]) -> dict[str, str]:
    """Return the variables that were asked for, without secrets: Modal's records have them."""
    return {name: value for name, value in spec.env.items() if name not in secrets}


TERMINATED: Final = "TERMINATED"

_ENDS: Final = {
    "TIMEOUT": ("failed", "Modal ended it at the end of its time"),
    "IDLE_TIMEOUT": ("failed", "Modal ended it, as it was idle"),
    TERMINATED: ("lost", "it was terminated outside Sandkeep"),
    "KERNEL_OOM_KILL": ("failed", "it was out of memory"),
    "MEMORY_MANAGER_EVICTION": ("failed", "Modal ended it, as it used too much memory"),
    "MEMORY_THRASHING_EVICTION": ("failed", "Modal ended it, as it used too much memory"),
    "INIT_FAILURE": ("failed", "it could not start at Modal"),
    "INTERNAL_FAILURE": ("failed", "Modal failed"),
}


def ending_of(result: Result) -> Ending:
    """Return the end of a sandbox that has ended."""
    kind, why = _ENDS.get(result.status, ("failed", f"its first command ended with exit code {result.exit_code}"))
    if result.status in ("FAILURE", "SUCCESS") and result.exit_code == NOT_FOUND:
        why += ": its image needs sh, base64 and tar"
    if said := readable(result.message):
        why += f": {said}"
    return Ending(kind="lost" if kind == "lost" else "failed", message=why)


NOT_FOUND: Final = 127
"""The exit code of a shell that does not find a program."""


def _isolation(plan: Plan) -> Isolation:
    limits = {"cpus": plan.cpus, "memory": plan.memory_bytes}
    return Isolation(
        mechanism="Modal (gVisor)", files="image", host_uid=None, workspace=WORKSPACE,
        limits={name: "Modal" for name, limit in limits.items() if limit}, notes=[],
    )  # fmt: skip


@asynccontextmanager
async def open_modal(
    state_dir: str, *, log_id: str = "", account: Account | None = None
) -> AsyncIterator[ModalProvider]:
    """Run the Modal provider, with its background tasks, for the length of a block. The sandboxes outlive it.

    Modal is not asked before it is needed, so that a daemon starts without it.
    """
    service = Service(account)
    try:
        async with running(partial(ModalProvider, state_dir, log_id, service=service)) as provider:
            yield provider
    finally:
        with trio.CancelScope(shield=True):
            await service.aclose()
