"""Who may do what: from the peer's credentials to an owner, and from a method's row to yes or no.

The check is made once, here, before any handler runs. Another owner's object is `not_found`, never
`permission_denied`, so that ids cannot be tried out.
"""

import grp
import os
from functools import lru_cache
from typing import Generic, TypeVar

from msgspec import Struct

from sandkeep.errors import CallerError
from sandkeep.events import Meta
from sandkeep.methods import Access, Method, Mutation, Params
from sandkeep.settings import ADMIN_GROUP
from sandkeep_store.views.state import State
from sandkeepd.api.call import Call
from sandkeepd.api.peer import Peer
from sandkeepd.providers.base import Caller, Progress

P_co = TypeVar("P_co", bound=Params, covariant=True)


class Request(Struct, Generic[P_co], frozen=True, kw_only=True):
    """A call that was let through: its parameters, and on whose behalf it is."""

    method: Method
    params: P_co
    owner: str
    admin: bool
    caller: Caller
    meta: Meta
    progress: Progress

    def sees(self, owner: str | None) -> bool:
        """Whether an object of that owner is shown to the caller."""
        return self.admin or (owner is not None and owner == self.owner)


def is_admin(peer: Peer) -> bool:
    """Root, the user that the daemon runs as, and the members of ``SANDKEEP_ADMIN_GROUP``."""
    if peer.uid in (0, os.geteuid()):
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


def admit(state: State, call: Call) -> Request[Params]:
    """Let a call through, or raise `permission_denied` or `not_found`."""
    peer, method, params = call.peer, call.method, call.params
    admin = is_admin(peer)
    if not admin:
        _check(state, method, params, peer.owner)
    return Request(
        method=method,
        params=params,
        owner=peer.owner,
        admin=admin,
        caller=Caller(uid=peer.uid, gid=peer.gid, groups=tuple(peer.groups)),
        meta=Meta(
            command_id=params.command_id if isinstance(params, Mutation) else None,
            owner=peer.owner,
            pid=peer.pid,
            client=call.client,
        ),
        progress=call.progress,
    )


def _check(state: State, method: Method, params: Params, owner: str) -> None:
    if method.access is Access.ADMIN:
        raise CallerError("permission_denied", f"{method.name} is for administrators: run it as root")
    for field, value in method.admin_if.items():
        if getattr(params, field) == value:
            raise CallerError(
                "permission_denied", f"{field}={value!r} is for administrators: leave it out", field=field
            )
    if method.access is Access.OWNER and method.subject is not None:
        subject: str = getattr(params, method.subject)
        if _owner(state, method.subject, subject) != owner:
            noun = method.subject.removesuffix("_id")
            raise CallerError("not_found", f"there is no {noun} {subject!r}", **{method.subject: subject})


def _owner(state: State, kind: str, subject: str) -> str | None:
    if kind == "image_id":
        image = state.images.get(subject)
        return image.owner if image else None
    sandbox = state.sandboxes.get(subject)
    return sandbox.owner if sandbox else None
