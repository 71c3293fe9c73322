"""Messages to callers, with the names that they gave to objects instead of ids.

Whoever called a sandbox `web` knows no ``sbx_01m8k…``. Code that refuses, fails or reports progress says ids, which are
always right; on their way to a caller they become names, each only where this caller could say it instead of the id:
the object is called so now, and nothing else is. The ids stay in the data of errors.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, get_args, get_origin

import msgspec

from sandkeep import ids
from sandkeep.errors import SandkeepError
from sandkeep.protocol.methods import Kind
from sandkeep_store.views.state import State
from sandkeepd.contract.caller import Progress
from sandkeepd.core import naming
from sandkeepd.core.access import Request

_KINDS: Final[dict[str, Kind]] = {
    ids.SANDBOX: "sandbox", ids.IMAGE: "image", ids.SNAPSHOT: "snapshot", ids.CHECKPOINT: "checkpoint",
}  # fmt: skip
_SENTENCES: Final = frozenset({"error", "handover_error", "note", "suspended_reason", "why"})
"""Fields of answers that hold a sentence for people."""

_AUTOMATIC: Final = "auto-"
"""Beginning of the names that the daemon gives to snapshots, which say less than ids."""

_ID: Final = re.compile(r"\b(?:sbx|img|snp|ckp|prc)_[0-9a-hjkmnp-tv-z]{26}\b")


def named_error(state: State, request: Request[Any], error: SandkeepError) -> SandkeepError | None:
    """Return an error whose message has names, with the ids that its data lacks; None if the message has no ids."""
    replaced: dict[str, str] = {}
    message = _with_names(state, request, error.message, replaced)
    if not replaced:
        return None
    data = dict(error.data)
    for object_id, field in replaced.items():
        if error.code != "not_found" and object_id not in str(error.data):
            data.setdefault(field, object_id)
    return type(error)(error.code, message, **data)


@contextmanager
def with_names(state: State, request: Request[Any]) -> Iterator[None]:
    """Put names for ids into the messages of errors that leave a block."""
    try:
        yield
    except SandkeepError as error:
        if (named := named_error(state, request, error)) is None:
            raise  # not from itself: in a cycle it would keep what its frames hold, such as descriptors
        raise named from error


def named_progress(state: State, request: Request[Any], progress: Progress) -> Progress:
    """Return the function that reports progress of a call with names."""

    async def report(message: str) -> None:
        await progress(_with_names(state, request, message, {}))

    return report


def named_answer(state: State, request: Request[Any], answer: Any) -> Any:
    """Return an answer whose sentences, such as the note of a sandbox, say names. Its other fields stay as they are."""
    if not isinstance(answer, msgspec.Struct):
        return answer
    sentences, lists = _named_fields(type(answer))
    changes: dict[str, Any] = {}
    for field in sentences:
        if (text := getattr(answer, field)) and (named := _with_names(state, request, text, {})) != text:
            changes[field] = named
    for field in lists:
        objects = getattr(answer, field)
        named_objects = [named_answer(state, request, each) for each in objects]
        if any(new is not old for new, old in zip(named_objects, objects, strict=True)):
            changes[field] = named_objects
    return msgspec.structs.replace(answer, **changes) if changes else answer


@cache
def _named_fields(kind: type[msgspec.Struct]) -> tuple[list[str], list[str]]:
    """Return the fields of an answer that are sentences, and those that are lists of objects which have some."""
    sentences, lists = [], []
    for field in msgspec.structs.fields(kind):
        element = next(iter(get_args(field.type)), None) if get_origin(field.type) is list else None
        if field.name in _SENTENCES:
            sentences.append(field.name)
        elif isinstance(element, type) and issubclass(element, msgspec.Struct) and any(_named_fields(element)):
            lists.append(field.name)
    return sentences, lists


def _with_names(state: State, request: Request[Any], message: str, replaced: dict[str, str]) -> str:
    """Replace ids in a message, and note in `replaced` which, with the field of data that is for each."""
    if "_" not in message:
        return message

    def name(found: re.Match[str]) -> str:
        object_id = found[0]
        kind = _KINDS.get(object_id[:3])
        given = _process_name(state, request, object_id) if kind is None else _name(state, request, kind, object_id)
        if given is None:
            return object_id
        replaced[object_id] = f"{kind or 'process'}_id"
        return given

    return _ID.sub(name, message)


def _name(state: State, request: Request[Any], kind: Kind, object_id: str) -> str | None:
    """Return the name by which the caller can refer to an object; None if it has none, or another has it, too."""
    subject = naming.objects_of(state, kind).get(object_id)
    if subject is None:
        return None
    if kind == "image":
        given = next(iter(subject.names), None)
    else:
        given = subject.name if kind == "sandbox" else subject.requested.name
    if given is not None and given.startswith(_AUTOMATIC):
        return None
    try:
        is_meant = given is not None and naming.find(state, kind, given, f"{kind}_id", request) == object_id
    except SandkeepError:  # several have it
        return None
    return given if is_meant else None


def _process_name(state: State, request: Request[Any], process_id: str) -> str | None:
    process = state.processes.get(process_id)
    if process is None or not process.named:
        return None
    sandbox = state.sandboxes.get(process.sandbox_id)
    is_seen = sandbox is not None and (request.admin or sandbox.owner == request.owner)
    return process.name if is_seen and sandbox.named.get(process.name) is process else None  # type: ignore[union-attr]
