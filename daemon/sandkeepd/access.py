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
from sandkeep_store.commands import Past
from sandkeep_store.views.state import State
from sandkeepd.api.call import Call, Give
from sandkeepd.api.peer import Peer
from sandkeepd.providers.base import Caller, Progress

P_co = TypeVar("P_co", bound=Params, covariant=True)


class Request(Struct, Generic[P_co], frozen=True, kw_only=True, gc=False):
    """A call that was let through: its parameters, and on whose behalf it is.

    Of a command that has an id, `command` says what it is, and `past` how far it came before, if it makes no event.
    """

    method: Method
    params: P_co
    owner: str
    admin: bool
    peer: Peer
    client: str | None
    progress: Progress
    give: Give
    command: str | None = None
    past: Past | None = None

    @property
    def caller(self) -> Caller:
        """With whose rights host paths are touched."""
        return Caller(uid=self.peer.uid, gid=self.peer.gid, groups=self.peer.groups)

    @property
    def command_id(self) -> str | None:
        """What the caller calls this change, if it is one."""
        return self.params.command_id if isinstance(self.params, Mutation) else None

    @property
    def meta(self) -> Meta:
        """What goes on record with the events that the call causes."""
        return Meta(
            command_id=self.command_id,
            command=self.command,
            owner=self.owner,
            pid=self.peer.pid,
            client=self.client,
        )

    def sees(self, owner: str | None) -> bool:
        """Whether an object of that owner is shown to the caller."""
        return self.admin or (owner is not None and owner == self.owner)

    def require_sandbox(self, state: State, sandbox_id: str) -> None:
        """Raise `not_found` unless there is such a sandbox and the caller is shown it."""
        owner = state.owner_of("", sandbox_id)
        if owner is None or not self.sees(owner):
            message = f"there is no sandbox {sandbox_id!r}{state.log.hint}"
            raise CallerError("not_found", message, sandbox_id=sandbox_id)


def is_admin(peer: Peer) -> bool:
    """Root, the user that the daemon runs as, and the members of ``SANDKEEP_ADMIN_GROUP``."""
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
        peer=peer,
        client=call.client,
        progress=call.progress,
        give=call.give,
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
        of_sandbox = method.subject == "sandbox_id"
        if state.owner_of("" if of_sandbox else subject, subject if of_sandbox else None) != owner:
            noun = method.subject.removesuffix("_id")
            message = f"there is no {noun} {subject!r}{state.log.hint}"
            raise CallerError("not_found", message, **{method.subject: subject})
