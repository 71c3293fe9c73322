"""Events as lines that a person can read. Pure: events in, text out."""

from collections.abc import Callable
from typing import Any, Final

from sandkeep.cli.output import plain, size
from sandkeep.model import Event

TYPE_COLUMNS: Final = 26


def _words(command: list[str]) -> str:
    import shlex

    return shlex.join(command)


def _isolation(data: dict[str, Any]) -> str:
    isolation = data["isolation"]
    uid = isolation.get("host_uid")
    return f"{isolation['mechanism']}, {isolation['files']}" + (f", host uid {uid}" if uid is not None else "")


def _requested(data: dict[str, Any]) -> str:
    secrets = data.get("secrets")
    return f"from {data['image_id']}" + (f", secrets {', '.join(secrets)}" if secrets else "")


def _launch(data: dict[str, Any]) -> str:
    return _words(data["command"]) + (" …" if data.get("command_cut") else "")


def _exit(data: dict[str, Any]) -> str:
    written = [
        f"{size(data[key])} {name}" for key, name in (("stdout_bytes", "out"), ("stderr_bytes", "err")) if data[key]
    ]
    return ", ".join([f"code {data['exit_code']}", *written])


def _content(data: dict[str, Any]) -> str:
    return f"{data['file_count']} files, {size(data['size_bytes'])}"


DETAILS: Final[dict[str, Callable[[dict[str, Any]], str]]] = {
    "daemon.started": lambda data: f"sandkeep {data['software']}, pid {data['pid']}",
    "image.create_requested": lambda data: str(data["source"]),
    "image.created": _content,
    "image.reused": lambda data: str(data["image_id"]),
    "sandbox.create_requested": _requested,
    "sandbox.created": _isolation,
    "process.launch_requested": _launch,
    "process.started": lambda data: f"pid {data['pid']}",
    "process.timed_out": lambda data: f"after {data['timeout_s']:g} s",
    "process.exited": _exit,
}


def detail(event: Event) -> str:
    """What matters of an event, in a few words; of a type that is not known here, what it says about itself."""
    data = event.data
    try:
        if event.type in DETAILS:
            return plain(DETAILS[event.type](data))
    except (KeyError, TypeError, ValueError, AttributeError):
        pass  # another version's shape
    return plain(next((str(data[key]) for key in ("message", "reason", "signal", "code") if data.get(key)), ""))


class Names:
    """Short names for streams: a process's own name once its launch was seen, else the end of its id."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, event: Event) -> str:
        """The name of what the event tells about."""
        if event.type == "process.launch_requested" and event.data.get("name"):
            self._known[event.stream] = plain(event.data["name"])
        return self._known.get(event.stream) or shorten(event.stream)


def shorten(stream: str) -> str:
    """The kind and the last six characters of an id that Sandkeep made, such as ``prc…x7k2m9``; others whole."""
    if len(stream) == 30 and stream[3] == "_":
        return f"{stream[:3]}…{stream[-6:]}"
    return plain(stream)


def clock(event: Event) -> str:
    """The time of day in UTC, to the millisecond, as the log has it."""
    return event.time[11:23]


def line(event: Event, names: Names) -> str:
    """One event: its position, time, type, whom it is about, and what matters of it."""
    what = f"{event.type:<{TYPE_COLUMNS}} {names.of(event):<10}  {detail(event)}"
    return f"{event.position:>5}  {clock(event)}  {what}".rstrip()


def history_line(event: Event, seconds: float, names: Names) -> str:
    """One event of a sandbox's life, with the seconds since its first. What is about the sandbox itself has no name."""
    about = "" if event.type.startswith("sandbox.") else names.of(event) + "  "
    return f"{seconds:>9.3f}  {event.type:<{TYPE_COLUMNS}} {about}{detail(event)}".rstrip()
