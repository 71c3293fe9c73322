"""Events as lines for people: events in, text out."""

from collections.abc import Callable
from typing import Any, Final

from sandkeep.cli.display.layout import cut, pad, plain
from sandkeep.cli.display.output import LIMITS_MET, paint, size
from sandkeep.model import Event, Moment

TYPE_COLUMNS: Final = 28
"""Columns of an event's type: the longest, `checkpoint.restore_requested`."""
WHO_COLUMNS: Final = 10
RESTORABLE: Final = "◆"
DELETED: Final = "◇"
ROOMY: Final = 100
"""From this width on there is room for milliseconds."""
NARROW: Final = 72
"""Below this width types are not aligned, and names are cut, so that exit codes and errors are seen."""


def _isolation(data: dict[str, Any]) -> str:
    isolation = data["isolation"]
    uid = isolation.get("host_uid")
    return f"{isolation['mechanism']}, {isolation['files']}" + (f", host uid {uid}" if uid is not None else "")


def _requested(data: dict[str, Any]) -> str:
    secrets = data.get("secrets")
    source = data.get("forked_from") or data.get("restored_from") or data["image_id"]
    how = "forked from" if data.get("forked_from") else "restored from" if data.get("restored_from") else "from"
    called = f", as {data['name']}" if data.get("name") else ""
    return f"{how} {shorten(source)}{called}" + (f", secrets {', '.join(secrets)}" if secrets else "")


def _choices(data: dict[str, Any]) -> list[str]:
    choices = data.get("choices") or {}
    return [", ".join(f"{count} {choice}" for choice, count in choices.items())] if choices else []


def _paused(data: dict[str, Any]) -> str:
    return "" if data.get("pause_ms") is None else f"frozen for {data['pause_ms']:.0f} ms"


def _snapshot(data: dict[str, Any]) -> str:
    over = f" over {shorten(data['parent_id'])}" if data.get("parent_id") else ""
    whole = "imported" if data.get("sandbox_id") is None else str(data["kind"])
    place = data["places"][0] if "places" in data else data["place"]  # as the oldest daemons said it
    return "  ".join(filter(None, [data.get("name"), whole + over, f"to {place['uri']}"]))


def _stored(data: dict[str, Any]) -> str:
    what = f"{data['member_count']} files, {size(data['size_bytes'])}"
    unsent = f"on this machine only: {data['unsent']}" if data.get("unsent") else ""
    return "  ".join(filter(None, [what, _paused(data), unsent]))


def _checkpoint(data: dict[str, Any]) -> str:
    goes_on = "" if data["leave_running"] else "suspends the sandbox"
    return "  ".join(filter(None, [data.get("name"), goes_on, f"to {data['place']['uri']}"]))


def _checkpoint_stored(data: dict[str, Any]) -> str:
    total = size(sum(file["size_bytes"] for file in data["files"]))
    return "  ".join(filter(None, [f"{data['processes']} processes, {total}", _paused(data)]))


def _orphans(data: dict[str, Any]) -> str:
    first, *others = [str(place["uri"]) for place in data["places"]]
    return first + (f" and {len(others)} more" if others else "")


def _launch(data: dict[str, Any]) -> str:
    import shlex

    return shlex.join(data["command"]) + (" …" if data.get("command_cut") else "")


def _exit(data: dict[str, Any]) -> str:
    written = [
        f"{size(data[key])} {name}" for key, name in (("stdout_bytes", "out"), ("stderr_bytes", "err")) if data[key]
    ]
    met = data.get("limits_met") or (["memory"] if data.get("oom_killed") else [])
    why = [LIMITS_MET.get(limit, limit) for limit in met]
    return "  ".join([f"exit {data['exit_code']}", *why, *written])


def _content(data: dict[str, Any]) -> str:
    count = f"{data['file_count']} files, " if data["file_count"] else ""
    return count + size(data["size_bytes"])


def _written(data: dict[str, Any]) -> str:
    count = f"{data.get('files', 1)} files, " if data["kind"] == "tree" else ""
    return f"{data['path']}, {count}{size(data['size_bytes'])}"


def _by_whom(data: dict[str, Any]) -> str:
    return "by another program" if data.get("outside") else str(data.get("reason") or "")


def _limits(data: dict[str, Any]) -> str:
    told = {"memory": data.get("memory_bytes"), "disk": data.get("disk_bytes")}
    changed = [f"{name} limit {size(limit)}" for name, limit in told.items() if limit is not None]
    changed += [f"{name} limit {data[name]}" for name in ("cpus", "pids") if data.get(name) is not None]
    return ", ".join(changed + [f"no {name.removesuffix('_bytes')} limit" for name in data.get("unset", ())])


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "es" if noun.endswith("h") else "s")


def _branches(data: dict[str, Any]) -> str:
    names = ", ".join(data.get("names") or map(shorten, data["sandbox_ids"]))
    return f"{_counted(len(data['sandbox_ids']), 'branch')} of {shorten(data['source_id'])}: {names}"


def _merge(data: dict[str, Any]) -> str:
    called = f", as {data['name']}" if data.get("name") else ""
    return f"{', '.join(data['branches'])} over {shorten(data['base_id'])}{called}"


def _commit(data: dict[str, Any]) -> str:
    return f"{shorten(data['sandbox_id'])} to {data['target']}" + (", by force" if data.get("force") else "")


def _session_start(data: dict[str, Any]) -> str:
    source = shorten(data["restored_from"]) if data.get("restored_from") else data["spec"]["image"]
    asked = f", for {data['reason']}" if data.get("reason") not in ("", None, "session.ensure") else ""
    return f"from {shorten(source)}{asked}"


def _session_stop(data: dict[str, Any]) -> str:
    return str(data["reason"]).replace("_", " ") + ("" if data["snapshot"] else ", without a snapshot")


def _session_stopped(data: dict[str, Any]) -> str:
    files = f"to {data['snapshot_id']}" if data.get("snapshot_id") else ""
    lost = f"files not saved: {data['unsaved']}" if data.get("unsaved") else ""
    return "  ".join(filter(None, [str(data["reason"]).replace("_", " "), files, lost]))


DETAILS: Final[dict[str, Callable[[dict[str, Any]], str]]] = {
    "daemon.started": lambda data: f"sandkeep {data['software']}, pid {data['pid']}",
    "provider.fell_back": lambda data: f"{data['used']} instead of {data['asked']}: {data['why']}",
    "log.compact_requested": lambda data: f"{len(data['sandboxes'])} sandboxes, {len(data['images'])} images",
    "log.compacted": lambda data: f"{data['events']} events, no gaps from {data['first_position']} on",
    "log.redact_requested": lambda data: f"event {data['position']}",
    "log.redacted": lambda data: f"event {data['position']} {data['what']}".rstrip(),
    "log.event_lost": lambda _: "damaged, and lost in a repair",
    "image.create_requested": lambda data: str(data["source"]) + (f" on {data['base']}" if data.get("base") else ""),
    "image.created": _content,
    "image.reused": lambda data: f"the same as {data['image_id']}",
    "image.tagged": lambda data: f"called {data['name']}",
    "image.published": lambda data: f"{data['reference']} for {', '.join(data['owners']) or 'everybody'}",
    "image.unpublished": lambda data: str(data["reference"]),
    "image.untagged": lambda data: f"not called {data['name']} any more",
    "sandbox.create_requested": _requested,
    "sandbox.created": _isolation,
    "sandbox.adopted": lambda _: "found running",
    "sandbox.moved": lambda data: f"to {', '.join(data['to']) or 'another daemon'}",
    "sandbox.updated": _limits,
    "sandbox.suspended": _by_whom,
    "sandbox.resume_requested": lambda data: "restart from its files" if data.get("anew") else "",
    "sandbox.resumed": lambda data: _by_whom(data) or (_isolation(data) if data.get("isolation") else ""),
    "sandbox.restore_requested": lambda data: f"from {shorten(data.get('checkpoint_id') or data['snapshot_id'])}",
    "sandbox.restored": lambda data: f"from {shorten(data.get('checkpoint_id') or data['snapshot_id'])}",
    "sandbox.fork_requested": lambda data: f"into {', '.join(map(shorten, data['sandbox_ids']))}",
    "sandbox.forked": _paused,
    "sandbox.terminate_requested": lambda data: str(data["reason"]).replace("_", " "),
    "sandbox.terminated": lambda data: str(data["reason"]).replace("_", " "),
    "sandbox.file_written": _written,
    "session.start_requested": _session_start,
    "session.started": lambda data: f"{data['ref']}" + (f"  files lost: {data['lost']}" if data.get("lost") else ""),
    "session.stop_requested": _session_stop,
    "session.stopped": _session_stopped,
    "artifact.export_requested": lambda data: str(data["path"]),
    "artifact.exported": lambda data: f"{data['name']}, {size(data['size_bytes'])}",
    **dict.fromkeys(
        ("volume.create_requested", "volume.remove_requested"), lambda data: f"{data['name']} of {data['owner']}"
    ),
    "lock.acquire_requested": lambda data: f"{data['name']} at {data['where']}",
    "lock.acquired": lambda data: f"fence {data['fence']}",
    "lock.steal_requested": lambda data: f"{data['name']} at {data['where']}",
    "lock.stolen": lambda _: "freed by force",
    "snapshot.create_requested": _snapshot,
    "snapshot.stored": _stored,
    "snapshot.deleted": lambda data: "its archive is kept for other snapshots" if data.get("kept") else "",
    "checkpoint.create_requested": _checkpoint,
    "checkpoint.stored": _checkpoint_stored,
    "checkpoint.restore_requested": lambda data: (
        f"{shorten(data['checkpoint_id'])} into {', '.join(map(shorten, data['sandbox_ids']))}"
    ),
    "archive.remove_requested": _orphans,
    "output.remove_requested": lambda data: f"of ended sandboxes: {len(data['sandboxes'])}",
    "branch.create_requested": _branches,
    "branch.created": lambda data: _paused(data) if data.get("pause_ms") else "",
    "branch.merge_requested": _merge,
    "branch.merged": lambda data: f"{data['changed']} paths changed, into {shorten(data['sandbox_id'])}",
    "branch.conflicted": lambda data: f"{_counted(data['conflicts'], 'conflict')}, {data['changed']} paths changed",
    "branch.resolve_requested": lambda data: "  ".join([_counted(data["decisions"], "decision"), *_choices(data)]),
    "branch.resolved": lambda data: f"{_counted(data['conflicts'], 'conflict')} left",
    "branch.commit_requested": _commit,
    "branch.committed": lambda data: f"{data['added']} added, {data['changed']} changed, {data['deleted']} deleted",
    "process.launch_requested": _launch,
    "process.started": lambda data: f"pid {data['pid']}",
    "process.timed_out": lambda data: f"after {data['timeout_s']:g} s",
    "process.exited": _exit,
    "process.restored": lambda data: f"pid {data['pid']}, from {shorten(data['checkpoint_id'])}",
}

COLOURS: Final = {
    "created": "green", "started": "green", "adopted": "green", "create_failed": "red", "launch_failed": "red",
    "failed": "red", "lost": "red", "suspend_failed": "red", "resume_failed": "red", "resumed": "green",
    "restored": "green", "forked": "green", "stored": "green", "sent": "green", "restore_failed": "red",
    "fork_failed": "red",
    "deleted": "dim", "suspended": "yellow", "timed_out": "yellow", "signalled": "yellow", "terminated": "dim",
    "removed": "dim", "acquired": "green", "contended": "yellow", "acquire_failed": "red", "released": "dim",
    "expired": "red", "stopped": "dim", "start_failed": "red", "stop_failed": "red", "stolen": "yellow",
    "steal_failed": "red",
    "remove_failed": "red", "merged": "green", "conflicted": "yellow", "resolved": "green", "merge_failed": "red",
    "resolve_failed": "red", "abandoned": "dim", "committed": "green", "commit_failed": "red",
}  # fmt: skip
"""By the second word of a type: green begins, red went wrong, yellow was done to it, dim is over."""


def detail(event: Event) -> str:
    """Summarize an event in a few words: as `DETAILS` says for its type, else by its usual fields."""
    data = event.data
    try:
        if event.type in DETAILS:
            return plain(DETAILS[event.type](data))
    except (KeyError, TypeError, ValueError, AttributeError):
        pass  # another version's shape
    code = f" [{data['code']}]" if data.get("message") and data.get("code") else ""
    return plain(next((f"{data[key]}{code}" for key in ("message", "reason", "signal", "code") if data.get(key)), ""))


class Names:
    """Short names for streams: a process's own name once its launch was seen, else the end of its id."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, event: Event) -> str:
        """Return the name of the event's object."""
        launch = event.data.get("requested") if event.type == "process.restored" else event.data
        if event.type in ("process.launch_requested", "process.restored") and launch and launch.get("name"):
            self._known[event.stream] = plain(launch["name"])
        return self._known.get(event.stream) or shorten(event.stream)


def shorten(stream: str) -> str:
    """Shorten an id of ours to its kind and last six characters, ``prc…x7k2m9``, without what follows a slash."""
    stream = stream.partition("/")[0]
    if len(stream) == 30 and stream[3] == "_":
        return f"{stream[:3]}…{stream[-6:]}"
    return plain(stream)


def day(event: Event) -> str:
    """The date in UTC."""
    return event.time[:10]


def clock(event: Event, room: int | None = None) -> str:
    """The time of day in UTC, as the log has it: to the millisecond, or where there is little room to the second."""
    return event.time[11:23] if room is None or room >= ROOMY else event.time[11:19]


def elapsed(seconds: float) -> str:
    """Format the time since the beginning: ``12.345``, ``1h02m05s`` or ``3d04h05m``, in nine columns."""
    if seconds < 3600:
        return f"{seconds:.3f}"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours < 100:
        return f"{hours}h{minutes:02}m{rest:02}s"
    return f"{hours // 24}d{hours % 24:02}h{minutes:02}m"


def line(event: Event, names: Names, room: int | None = None) -> str:
    """Format one event: its position, time, type, object, and summary."""
    who = _who(event, names, room)
    return _fit(f"{event.position:>5}  {clock(event, room)}  ", event, f"{who}  {detail(event)}", room)


def history_line(event: Event, seconds: float, names: Names, room: int | None = None) -> str:
    """Format one event of a sandbox's life: its position, a sign if that moment was kept, and the time since the first.
    Events of the sandbox, or session, itself have no name.
    """
    about = "" if event.type.startswith(("sandbox.", "session.")) else _who(event, names, room) + "  "
    after = moment_summary(event.moment, event) if event.moment is not None else about + detail(event)
    return _fit(f"{event.position:>5} {sign(event)} {elapsed(seconds):>9}  ", event, after, room)


def _who(event: Event, names: Names, room: int | None) -> str:
    name = names.of(event)
    return cut(name, WHO_COLUMNS) if _is_narrow(room) else pad(name, WHO_COLUMNS)


def _is_narrow(room: int | None) -> bool:
    return room is not None and room < NARROW


def sign(event: Event) -> str:
    """A sign where a moment was kept: a filled one as long as it is possible to go back there."""
    if event.moment is None:
        return " "
    return RESTORABLE if event.moment.status == "ready" else DELETED


def moment_summary(moment: Moment, event: Event) -> str:
    """Name the snapshot or checkpoint of a moment, by its whole id, as that is typed next."""
    gone = "" if moment.status == "ready" else moment.status
    more = detail(event) if event.type.startswith(f"{moment.kind}.") else ""
    return plain("  ".join(filter(None, [moment.source_id, moment.name, gone, more])))


def _fit(before: str, event: Event, after: str, room: int | None) -> str:
    """The line in so much room, its type in a colour, and bold where a moment was kept."""
    kind = plain(event.type).ljust(0 if _is_narrow(room) else TYPE_COLUMNS)
    rest = cut(after, room and max(1, room - len(before) - len(kind) - 2))
    colour = COLOURS.get(event.type.partition(".")[2])
    return f"{paint(before, 'bold' if sign(event) == RESTORABLE else None)}{paint(kind, colour)}  {rest}".rstrip()
