"""Reservations: uids, names and other unique resources of sandboxes before they are on record."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from sandkeep import events, ids
from sandkeep.errors import CallerError, StateError
from sandkeep.model import SandboxSpec
from sandkeep.settings.daemon import SESSION_KEEP
from sandkeep_store.eventlog.log import NewEvent
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.contract.caller import Caller
from sandkeepd.contract.provider import Provider
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core
from sandkeepd.core.operation import Order
from sandkeepd.core.quotas import of_sandbox


class Reservation(msgspec.Struct):
    """A sandbox that is about to go on record: its owner, its name, and the plan that its provider made for it."""

    owner: str
    name: str | None
    provider: str = ""
    plan: dict[str, Any] = msgspec.field(default_factory=dict)


class Reservations:
    """Names and plans of sandboxes that are about to go on record, by their ids; their quotas are reserved, too."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._reserved: dict[str, Reservation] = {}

    @contextmanager
    def one(
        self, request: Request[Any], name: str | None, spec: SandboxSpec, *, instead_of: str | None = None
    ) -> Iterator[str]:
        """Reserve the name of one sandbox, for the length of a block in which it goes on record; yield its id. The name
        may be that of the sandbox `instead_of`, which ends before.

        Raises `invalid` and `conflict` for the name, and `quota_exceeded`.
        """
        sandbox_id = ids.new_id(ids.SANDBOX)
        self._reserve(request, request.owner, {sandbox_id: name}, spec, "name", instead_of)
        try:
            yield sandbox_id
        finally:
            self.release(sandbox_id)

    def several(
        self, request: Request[Any], owner: str, names: Sequence[str], count: int, spec: SandboxSpec
    ) -> list[str]:
        """Reserve names for several sandboxes until they are released; return their ids. Raises `invalid`, `conflict`
        and `quota_exceeded`.
        """
        if names and len(names) != count:
            message = f"names: {len(names)} are given for {count} sandboxes: give one for each"
            raise CallerError("invalid", message, field="names")
        chosen = [ids.new_id(ids.SANDBOX) for _ in range(count)]
        named = dict(zip(chosen, names, strict=True)) if names else dict.fromkeys(chosen)
        self._reserve(request, owner, named, spec, "names")
        return chosen

    async def hand_over(self, sandbox_ids: Sequence[str], begin: Callable[[], Awaitable[Order[Any]]]) -> Order[Any]:
        """Begin an order that makes reserved sandboxes, and return it. They are released with its resources, or at once
        if it does not begin.
        """
        try:
            order = await begin()
        except BaseException:
            self.release(*sandbox_ids)
            raise
        order.resources.callback(self.release, *sandbox_ids)
        return order

    @contextmanager
    def again(self, request: Request[Any], sandbox: SandboxState) -> Iterator[events.SandboxCreateRequested]:
        """Reserve the resources of a sandbox that is made after all, for the length of a block in which it goes on
        record; yield the intent. Raises `conflict` if another has its name by now, and `quota_exceeded`.
        """
        sandbox_id, asked = sandbox.sandbox_id, sandbox.requested
        claims = self._core.provider(asked.provider).claims
        self._reserve(request, sandbox.owner, {sandbox_id: asked.name}, asked.spec, "name")
        try:
            if claims is not None:
                asked = msgspec.structs.replace(asked, plan=claims.claim_again(sandbox_id, asked.plan))
            reserved = self._reserved[sandbox_id]
            reserved.provider, reserved.plan = asked.provider, asked.plan
            yield asked
        finally:
            self.release(sandbox_id)

    def intent(
        self, sandbox_id: str, provider: Provider, image_id: str, spec: SandboxSpec, caller: Caller,
        secrets: Iterable[str], adapt: Callable[[dict[str, Any]], dict[str, Any]] = lambda plan: plan, **facts: Any,
    ) -> NewEvent:  # fmt: skip
        """Return the intent to make a sandbox whose name is reserved, and reserve the resources of its plan: the one of
        the provider, considering all others, changed by `adapt`. `facts` are further fields of the event.
        """
        image, reserved = self._core.state.images.get(image_id), self._reserved[sandbox_id]
        spec = self._with_lifetime(provider, reserved.owner, spec)
        plan = provider.plan(
            sandbox_id, image_id, spec, caller, self._plans(provider.name),
            details=image.details if image is not None else {}, owner=reserved.owner,
        )  # fmt: skip
        reserved.provider, reserved.plan = provider.name, adapt(plan)
        event = events.SandboxCreateRequested(
            owner=reserved.owner,
            image_id=image_id,
            provider=provider.name,
            spec=spec,
            secrets=sorted(secrets),
            plan=reserved.plan,
            name=reserved.name,
            **facts,
        )
        return NewEvent(sandbox_id, event, sandbox_id, 0)

    def _with_lifetime(self, provider: Provider, owner: str, spec: SandboxSpec) -> SandboxSpec:
        session = self._core.state.session_called(owner, spec.session_id) if spec.session_id is not None else None
        return rules.with_lifetime(
            spec, session, default_s=provider.default_lifetime(), longest_s=provider.longest_lifetime_s,
            keep_s=SESSION_KEEP(),
        )  # fmt: skip

    def plan(self, sandbox_id: str) -> dict[str, Any]:
        """Return the plan of a sandbox that is about to go on record."""
        return self._reserved[sandbox_id].plan

    def release(self, *sandbox_ids: str) -> None:
        """End reservations: the sandboxes are on record, or were given up, and then the provider's claims are
        withdrawn.
        """
        for sandbox_id in sandbox_ids:
            reserved = self._reserved.pop(sandbox_id, None)
            self._core.quotas.release(sandbox_id)
            recorded = self._core.state.sandboxes.get(sandbox_id)
            if reserved is not None and reserved.provider and (recorded is None or recorded.hidden):
                claims = self._core.provider(reserved.provider).claims
                if claims is not None:
                    claims.withdraw(sandbox_id, reserved.plan)

    def _reserve(
        self, request: Request[Any], owner: str, named: Mapping[str, str | None], spec: SandboxSpec, field: str,
        instead_of: str | None = None,
    ) -> None:  # fmt: skip
        names = [ids.check_new_name(name, field) for name in named.values() if name is not None]
        for name in names:
            if names.count(name) > 1 or self._is_taken(owner, name, instead_of):
                raise StateError("conflict", f"you have a sandbox called {name!r}: choose another name", name=name)
        self._core.quotas.reserve(request, owner, dict.fromkeys(named, of_sandbox(spec)))
        for sandbox_id, given in named.items():
            self._reserved[sandbox_id] = Reservation(owner, given)

    def _is_taken(self, owner: str, name: str, instead_of: str | None) -> bool:
        """Tell if another sandbox of that owner has the name, which has not ended, or is about to be."""
        found = self._core.state.sandbox_named(owner, name)
        if found is not None and not found.hidden and found.sandbox_id != instead_of:
            return True
        return any((reserved.owner, reserved.name) == (owner, name) for reserved in self._reserved.values())

    def _plans(self, provider: str) -> list[dict[str, Any]]:
        """Return the plans of the provider's sandboxes that have not ended, and of those about to be on record."""
        kept = [
            s.requested.plan
            for s in self._core.state.sandboxes.values()
            if s.requested.provider == provider and not s.hidden
        ]
        return kept + [reserved.plan for reserved in self._reserved.values() if reserved.provider == provider]
