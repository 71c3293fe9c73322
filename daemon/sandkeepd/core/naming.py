"""Resolution of what callers call objects: ids, names, references of container images, and how an id begins.

In that order the first counts that the caller may see. The beginning of an id needs its prefix, such as ``sbx_``, so
that no misspelt name finds an object, and `LEAST` characters more, so that no empty variable does. Objects of other
owners do not exist here, neither as results nor as candidates.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final, Protocol

from sandkeep import ids
from sandkeep.errors import CallerError
from sandkeep.protocol.methods import Kind
from sandkeep_store.views.images import ImageState
from sandkeep_store.views.objects import Objects
from sandkeep_store.views.state import State
from sandkeepd.contract import image_references
from sandkeepd.core import rules

SHOWN: Final = 3
"""Maximum number of candidates in the error of an ambiguous word."""

LEAST: Final = 4
"""Minimum number of characters after the prefix in the beginning of an id."""

_PREFIXES: Final[Mapping[str, str]] = {
    "sandbox": ids.SANDBOX, "image": ids.IMAGE, "snapshot": ids.SNAPSHOT, "checkpoint": ids.CHECKPOINT,
    "session": ids.SESSION, "artifact": ids.ARTIFACT, "merge": ids.MERGE, "commit": ids.COMMIT, "lock": ids.LOCK,
}  # fmt: skip


class Asker(Protocol):
    """The caller: an owner, who may be an administrator."""

    @property
    def owner(self) -> str:
        """The owner."""
        ...

    @property
    def admin(self) -> bool:
        """True if the caller sees the objects of all owners."""
        ...


def resolve(state: State, kind: Kind, text: str, field: str, asker: Asker) -> str:
    """Return the id of the object of that kind that a caller means. Raises `not_found`, and `invalid` for a word that
    several have.
    """
    found = find(state, kind, text, field, asker)
    if found is None:
        raise rules.not_found(state, kind, text, field)
    return found


def find(state: State, kind: Kind, text: str, field: str, asker: Asker) -> str | None:
    """Do as `resolve`; return None instead of raising `not_found`."""
    found = _FINDERS[kind](state, text, field, asker)
    return found if found is not None else beginning(objects_of(state, kind), kind, text, field, asker)


def objects_of(state: State, kind: str) -> Objects[Any]:
    """Return the objects of a kind, by id."""
    objects: Objects[Any] = getattr(state, {"sandbox": "sandboxes"}.get(kind, f"{kind}s"))
    return objects


def beginning(objects: Objects[Any], kind: str, text: str, field: str, asker: Asker) -> str | None:
    """Return the one id that begins so of those that the caller may see. Raises `invalid` if there are several, and
    `not_found` if the text is too short.
    """
    if not is_beginning(text, _PREFIXES[kind], kind, field):
        return None
    found = list(islice(objects.beginning_with(text, None if asker.admin else asker.owner), SHOWN + 1))
    if len(found) > 1:
        raise ambiguous(text, field, f"ids of {_plural(kind)} begin so", found)
    return found[0] if found else None


def is_beginning(text: str, prefix: str, kind: str, field: str) -> bool:
    """Return True if a text may be the beginning of an id. Raises `not_found` for one that is too short: ``rm sbx_$X``
    with an empty X would end the only sandbox.
    """
    if not text.startswith(f"{prefix}_"):
        return False
    if len(text) < len(prefix) + 1 + LEAST:
        why = f"the beginning of an id needs at least {LEAST} characters after {prefix}_ (maybe a variable is empty)"
        raise CallerError("not_found", f"there is no {kind} {text!r}: {why}", **{field: text})
    return True


def ambiguous(text: str, field: str, why: str, candidates: Sequence[str], give: str = "more") -> CallerError:
    """Return the error for a word by which several objects could be meant. `give` is what to give of one of them."""
    shown = list(candidates[:SHOWN])
    more = " and more" if len(candidates) > SHOWN else ""
    message = f"{field}: {text!r} is ambiguous, as several {why}: give {give} of one of {', '.join(shown)}{more}"
    return CallerError("invalid", message, field=field, candidates=shown)


def _plural(kind: str) -> str:
    return {"sandbox": "sandboxes"}.get(kind, f"{kind}s")


_Finder = Callable[[State, str, str, Asker], str | None]


def _by_id_of(kind: str) -> _Finder:
    def by_id(state: State, text: str, field: str, asker: Asker) -> str | None:  # noqa: ARG001
        found = objects_of(state, kind).get(text)
        return text if found is not None and (asker.admin or found.owner == asker.owner) else None

    return by_id


def _sandbox(state: State, text: str, field: str, asker: Asker) -> str | None:  # noqa: ARG001
    """The caller's own sandbox of that name, if it has not ended; else the one of that id; else the caller's own of
    that name that ended last.

    Ids do not look like names but for those that callers chose in older logs: a new sandbox is not to be hidden by an
    old one that has ended.
    """
    named = state.sandbox_named(asker.owner, text)
    if named is not None and not named.hidden:
        return named.sandbox_id
    found = state.sandboxes.get(text)
    if found is not None and (asker.admin or found.owner == asker.owner):
        return text
    if named is None and state.session_called(asker.owner, text) is not None:
        return text  # it has no sandbox yet: `Dispatch` sees to that where one is needed
    return named.sandbox_id if named is not None else None


def _session(state: State, text: str, field: str, asker: Asker) -> str | None:  # noqa: ARG001
    session = state.session_called(asker.owner, text) or state.sessions.get(text)
    return session.key if session is not None and (asker.admin or session.owner == asker.owner) else None


def _image(state: State, text: str, field: str, asker: Asker) -> str | None:
    found = _by_id_of("image")(state, text, field, asker)
    if found is not None:
        return found
    named = state.image_named(asker.owner, ids.image_name(text))
    if named is not None and not named.ended:
        return named.image_id
    made = image_of_reference(state.images.values(), text, asker.owner)
    if made is not None:
        return made.image_id
    return named.image_id if named is not None else None


def image_of_reference(
    images: Iterable[ImageState], text: str, owner: str, accept: Callable[[ImageState], bool] = lambda _: True
) -> ImageState | None:
    """Return the owner's newest image that was made from a reference and is ready."""
    wanted = _in_full(text)
    if wanted is None:
        return None
    made = (
        image
        for image in images
        if image.requested.kind == "reference"
        and image.status == "ready"
        and image.owner == owner
        and _in_full(image.requested.source) == wanted
        and accept(image)
    )
    return max(made, key=lambda image: image.requested_us, default=None)


@lru_cache(maxsize=4096)
def _in_full(reference: str) -> str | None:
    try:
        return image_references.parse(reference, "image").in_full
    except CallerError:
        return None


def _snapshot(state: State, text: str, field: str, asker: Asker) -> str | None:
    return _by_id_of("snapshot")(state, text, field, asker) or _named(state.snapshots, "snapshots", text, field, asker)


def _checkpoint(state: State, text: str, field: str, asker: Asker) -> str | None:
    by_id = _by_id_of("checkpoint")(state, text, field, asker)
    return by_id or _named(state.checkpoints, "checkpoints", text, field, asker)


def _named(objects: Objects[Any], kinds: str, text: str, field: str, asker: Asker) -> str | None:
    """The caller's own object of that name, if it has not ended; else the one that ended last."""
    named = objects.named(asker.owner, text)
    alive = [_id_of(one) for one in named if not one.ended]
    if len(alive) > 1:
        raise ambiguous(text, field, f"{kinds} are called so", alive[::-1], give="the id")
    return alive[0] if alive else (_id_of(named[-1]) if named else None)


def _id_of(one: Any) -> str:
    found: str = getattr(one, "snapshot_id", None) or one.checkpoint_id
    return found


_FINDERS: Final[Mapping[str, _Finder]] = {
    "sandbox": _sandbox, "session": _session, "image": _image, "snapshot": _snapshot, "checkpoint": _checkpoint,
    "artifact": _by_id_of("artifact"), "merge": _by_id_of("merge"), "commit": _by_id_of("commit"),
}  # fmt: skip
