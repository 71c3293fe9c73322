"""Logs that earlier versions wrote: what they hold, and what their views are."""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from sandkeep_store.eventlog.log import EventLog
from sandkeep_store.upkeep import offline, segments
from sandkeep_store.views.metadata import document
from sandkeep_store.views.state import State

LOGS: Final = Path(__file__).parents[1] / "contracts" / "logs"
STATE: Final = "state.tar.gz"
VIEWS: Final = "views.json"
KINDS: Final = ("images", "sandboxes", "processes", "snapshots", "checkpoints", "locks", "artifacts", "volumes")


def pack(state_dir: Path, target: Path) -> None:
    """Keep the log of a state directory, what is archived of it, and the documents made of it."""
    names = ["events.db", "events.head", "commands.db", "archive", *documents(state_dir)]
    with tarfile.open(target, "w:gz") as archive:
        for name in filter(lambda name: (state_dir / name).exists(), names):
            archive.add(state_dir / name, name, filter=_nobodys)


def documents(state_dir: Path) -> list[str]:
    """The `metadata.json` of each sandbox."""
    return sorted(str(path.relative_to(state_dir)) for path in state_dir.glob("sandboxes/*/metadata.json"))


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def unpack(kept: Path, state_dir: Path) -> None:
    """Unpack a state directory as it was kept, which is the caller's own."""
    state_dir.mkdir(mode=0o700, exist_ok=True)
    with tarfile.open(kept / STATE) as archive:
        archive.extractall(state_dir, filter="data")


def views(log: EventLog) -> dict[str, Any]:
    """All that can be read of a log, as JSON: each object as callers see it, the document of each sandbox, and whose
    what each stream tells is.
    """
    state = offline.fold(log)
    found = {kind: {name: _json(view.view()) for name, view in getattr(state, kind).items()} for kind in KINDS}
    found["sessions"] = {
        name: _json(session.view(state.sandboxes.get(session.sandbox_id or "")))
        for name, session in state.sessions.items()
    }
    found["forks"] = {
        name: _json({**msgspec.structs.asdict(fork), "done": fork.done}) for name, fork in state.forks.items()
    }
    found["documents"] = {
        name: json.loads(said)
        for name, sandbox in state.sandboxes.items()
        if (said := document(sandbox, log.log_id)) is not None
    }
    found["owners"] = _owners(log, state)
    return found


def _owners(log: EventLog, state: State) -> dict[str, str | None]:
    owners: dict[str, str | None] = {}
    log.scan(lambda fact: owners.__setitem__(fact.stream, state.owner_of(fact.stream, fact.sandbox_id)))
    return owners


def _json(value: Any) -> Any:
    return json.loads(msgspec.json.encode(value))


def types(state_dir: Path, log: EventLog) -> dict[str, int]:
    """Count of the events of each type, in the log and in its archive."""
    found: dict[str, int] = {}

    def count(fact: Any) -> None:
        found[fact.type] = found.get(fact.type, 0) + 1

    log.scan(count)
    for name in segments.names(str(state_dir)):
        for line in segments.events(f"{state_dir}/{segments.FOLDER}/{name}"):
            count(line)
    return found


def opened(state_dir: Path, work: Callable[[EventLog], Any]) -> Any:
    """State found in the log of a state directory that no daemon uses."""
    log = offline.open_log(str(state_dir))
    try:
        return work(log)
    finally:
        log.close()
