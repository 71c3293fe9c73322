"""Access control: from the peer's credentials to an owner, and from a method's row to a decision.

The check is made once, here, before any handler runs, for every object that the parameters name. Another owner's object
and a missing one give the same `not_found`, so that ids cannot be probed. Names are resolved to ids here.
"""

import grp
import os
from functools import lru_cache
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from sandkeep import ids
from sandkeep.errors import CallerError
from sandkeep.events import Meta
from sandkeep.protocol.methods import METHODS, Access, Method, Mutation, Params
from sandkeep.settings.daemon import ADMIN_GROUP
from sandkeep_store.eventlog.eventless_commands import CommandProgress
from sandkeep_store.views.state import State
from sandkeepd.contract.caller import Caller, Progress, no_progress
from sandkeepd.core import naming
from sandkeepd.core.call import Call, Give, cannot_give
from sandkeepd.core.peer import Peer

_HOST_PATHS: Final = ("source", "image", "target")
"""The parameters that may be a directory of the host."""


class _Asker(NamedTuple):
    owner: str
    admin: bool


P = TypeVar("P", bound=Params)
P_co = TypeVar("P_co", bound=Params, covariant=True)


class Request(Struct, Generic[P_co], frozen=True, kw_only=True, gc=False):
    """An admitted call: its parameters, and its owner. `sent` are the parameters with the caller's own words, which
    may be names, where `params` have ids.

    For a command with an id, `command` is its fingerprint, and `past` its earlier progress, if it makes no event.
    """

    method: Method
    params: P_co
    sent: P_co
    owner: str
    admin: bool
    peer: Peer
    client: str | None
    progress: Progress
    give: Give
    command: str | None = None
    past: CommandProgress | None = None

    @property
    def caller(self) -> Caller:
        """With whose rights host paths are touched."""
        return Caller(uid=self.peer.uid, gid=self.peer.gid, groups=self.peer.groups)

    @property
    def command_id(self) -> str | None:
        """The caller's id of the command; None if it changes nothing or has none."""
        return self.params.command_id if isinstance(self.params, Mutation) else None

    @property
    def meta(self) -> Meta:
        """The metadata of the events that the call causes."""
        return Meta(
            command_id=self.command_id,
            command=self.command,
            owner=self.owner,
            pid=self.peer.pid,
            client=self.client,
        )

    def sees(self, owner: str | None) -> bool:
        """Return True if the caller may see an object of that owner."""
        return self.admin or (owner is not None and owner == self.owner)


def part_of_request(request: Request[Any], method: str, params: P) -> Request[P]:
    """Return a request that is part of another: of the same caller, without the command's id."""
    return cast(
        "Request[P]", replace(request, method=METHODS[method], params=params, sent=params, command=None, past=None)
    )


def own_request(owner: str, method: str, params: P) -> Request[P]:
    """Return a request that the daemon makes for an owner."""
    peer = Peer(uid=os.geteuid(), gid=os.getegid(), pid=os.getpid())
    return Request(
        method=METHODS[method], params=params, sent=params, owner=owner, admin=False, peer=peer, client=None,
        progress=no_progress, give=cannot_give,
    )  # fmt: skip


def is_admin(peer: Peer) -> bool:
    """Root, the user that the daemon runs as, and the members of ``SANDKEEP_ADMIN_GROUP``; no API key."""
    if peer.key is not None:
        return False
    if peer.uid == 0 or peer.uid == os.geteuid():
        return True
    group = _group_id(ADMIN_GROUP())
    return group is not None and group in (peer.gid, *peer.groups)


@lru_cache(maxsize=8)
def _group_id(name: str) -> int | None:
    if not name:
        return None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def forget_groups() -> None:
    """Look groups up anew: one may have been made, or have another number."""
    _group_id.cache_clear()


def admit(state: State, call: Call, *, may_be_known: bool = False) -> Request[Params]:
    """Let a call through, or raise `permission_denied` or `not_found`. If it `may_be_known`, as a command that is
    repeated, names that mean nothing any more are as sent.
    """
    peer, method = call.peer, call.method
    admin, owner = is_admin(peer), peer.owner
    if not admin:
        _check(method, call.params)
    if peer.key is not None:
        _refuse_host_paths(call.params)
    return Request(
        method=method,
        params=_resolved(state, method, call.params, _Asker(owner, admin), may_be_known=may_be_known),
        sent=call.params,
        owner=owner,
        admin=admin,
        peer=peer,
        client=call.client,
        progress=call.progress,
        give=call.give,
    )


def check_allowed(request: Request[Any], method: Method, params: Params) -> None:
    """Raise `permission_denied` unless the caller may call a method with these parameters, of whatever origin."""
    if not request.admin:
        _check(method, params)
    if request.peer.key is not None:
        _refuse_host_paths(params)


def _check(method: Method, params: Params) -> None:
    if method.access is Access.ADMIN:
        raise CallerError("permission_denied", f"{method.name} is for administrators: run it as root")
    for field, value in method.admin_if.items():
        if getattr(params, field) == value:
            raise CallerError(
                "permission_denied", f"{field}={value!r} is for administrators: leave it out", field=field
            )


def _refuse_host_paths(params: Params) -> None:
    """Refuse directories of the host to an API key: nobody on this machine vouches for its holder."""
    for field in _HOST_PATHS:
        if str(getattr(params, field, None) or "").startswith("/"):
            message = f"{field}: paths of the host are not for API keys: give a reference, or an image's id"
            raise CallerError("permission_denied", message, field=field)
    if any(volume.source.startswith("/") for volume in getattr(params, "volumes", None) or ()):
        message = "volumes: directories of the host are not for API keys: give volumes by name"
        raise CallerError("permission_denied", message, field="volumes")


def _resolved(
    state: State, method: Method, params: Params, asker: naming.Asker, *, may_be_known: bool
) -> Params:  # fmt: skip
    """Return the parameters with ids for what the caller called the objects: see `naming`."""
    found_ids: dict[str, str] = {}
    for field, kind in method.references.items():
        text: str | None = getattr(params, field)
        if text is None:
            continue
        try:
            found = naming.resolve(state, kind, text, field, asker)
        except CallerError:
            if not may_be_known or ids.is_whole(text):  # what an id means now, it meant then: this caller lost access
                raise
            continue
        if found != text:
            found_ids[field] = found
    return replace(params, **found_ids) if found_ids else params
