"""Sandkeep's own settings: environment variables, each with its parser, default and one line, read when used.

`settings.all` is the table that the reference is written from. A malformed value is `not_configured`, naming the
variable.
"""

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Generic, NamedTuple, TypeVar

from sandkeep.errors import SetupError

T = TypeVar("T")
N = TypeVar("N", int, float)


class Setting(Generic[T]):
    """One environment variable. Calling it parses and returns its present value.

    `shown` is the default as the reference shows it, and is parsed where `default` does not compute another.
    """

    def __init__(
        self, name: str, parse: Callable[[str], T], shown: str, summary: str, default: Callable[[], T] | None = None
    ) -> None:
        self.name = name
        self.parse = parse
        self.default = default or (lambda: parse(shown))
        self.shown_default = shown
        self.summary = summary

    @property
    def is_set(self) -> bool:
        """True if an administrator has chosen the value."""
        return bool(os.environ.get(self.name))

    def __call__(self, environ: Mapping[str, str] | None = None) -> T:
        """The present value. Raises `not_configured`, naming the variable, when it is malformed."""
        text = (os.environ if environ is None else environ).get(self.name, "")
        if not text:
            return self.default()
        try:
            return self.parse(text)
        except ValueError as error:
            raise SetupError(
                "not_configured", f"{self.name}={text!r} cannot be used: {error}", setting=self.name
            ) from None


def optional(name: str, parse: Callable[[str], T], summary: str, shown: str = "none") -> Setting[T | None]:
    """Return a setting that is None when its variable is unset."""
    return Setting[T | None](name, parse, shown, summary, default=lambda: None)


def matching(pattern: str, advice: str) -> Callable[[str], str]:
    """Return a parser of text that `pattern` matches as a whole. It raises ValueError with `advice`."""

    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(advice)
        return text

    return parse


def number_between(least: N, most: N, what: str = "a number") -> Callable[[str], N]:
    """Return a parser of numbers from `least` to `most`, of their type. It raises ValueError: `what` is to be given."""

    def parse(text: str) -> N:
        with suppress(ValueError):
            if least <= (found := type(least)(text)) <= most:
                return found
        raise ValueError(f"give {what} from {least:.10g} to {most:.10g}")

    return parse


def absolute_path(text: str) -> str:
    """Return the path, normalized. Raises ValueError."""
    if not text.startswith("/") or "\0" in text:
        raise ValueError("give an absolute path")
    return os.path.normpath(text)


def parse_size(text: str) -> int:
    """Bytes from text such as ``512``, ``64k``, ``512M``, ``10GiB`` (powers of 1024). Raises ValueError."""
    units = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
    lowered = text.strip().lower()
    digits = lowered.rstrip("bikmgt")
    unit = lowered[len(digits) :].removesuffix("b").removesuffix("i")
    if unit not in units or not digits.replace(".", "", 1).isdigit():
        raise ValueError("give a size such as 512M or 10G")
    return int(float(digits) * 1024 ** units[unit])


def at_least(least: N, parse: Callable[[str], N], advice: str) -> Callable[[str], N]:
    """Return a parser of what `parse` returns, from `least` on. It raises ValueError with `advice`."""

    def parse_enough(text: str) -> N:
        if (amount := parse(text)) < least:
            raise ValueError(advice)
        return amount

    return parse_enough


def unless(word: str, parse: Callable[[str], T]) -> Callable[[str], T | None]:
    """Return a parser that returns None for a word, and for other text what `parse` returns."""
    return lambda text: None if text.strip().lower() == word else parse(text)


def parse_age(text: str) -> float:
    """Seconds from text such as ``36h``, ``30d`` or ``8w``. Raises ValueError."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
    number, unit = text.strip()[:-1], text.strip()[-1:]
    if unit not in units or not number.replace(".", "", 1).isdigit():
        raise ValueError("give an age such as 36h, 30d or 8w")
    return float(number) * units[unit]


class SnapshotRule(NamedTuple):
    """Retention of snapshots with a label: their maximum number and age; None is no bound. `label` is a key, or a key
    and a value; without one the rule fits all.
    """

    label: tuple[str, str | None] | None
    most: int | None
    age_s: float | None

    def fits(self, labels: Mapping[str, str]) -> bool:
        """Return True if the rule applies to a snapshot with these labels."""
        if self.label is None:
            return True
        key, value = self.label
        return key in labels and value in (None, labels[key])


def parse_snapshot_rules(text: str) -> tuple[SnapshotRule, ...]:
    """Rules such as ``kind=nightly:7,30d; 20``. Raises ValueError."""
    return () if text.strip() == "all" else tuple(_snapshot_rule(rule) for rule in text.split(";") if rule.strip())


def _snapshot_rule(text: str) -> SnapshotRule:
    label, colon, bounds = text.strip().rpartition(":")
    key, equals, value = label.partition("=")
    count = age = None
    for bound in bounds.split(","):
        if bound.strip().isdigit():
            count = int(bound)
        else:
            try:
                age = parse_age(bound)
            except ValueError:
                raise ValueError("give rules such as 10,30d; or kind=nightly:7; or all") from None
    if count is not None and count < 1:
        raise ValueError("keep at least 1 snapshot of each sandbox")
    return SnapshotRule((key, value if equals else None) if colon else None, count, age)


QUOTAS: Final[dict[str, int]] = {
    "sandboxes": 100,
    "memory": 200 * 1024**3,
    "disk": 200 * 1024**3,
    "images": 50 * 1024**3,
    "snapshots": 100 * 1024**3,
    "checkpoints": 100 * 1024**3,
    "artifacts": 20 * 1024**3,
    "journals": 20 * 1024**3,
    "calls": 4096,
}
"""The quotas of an owner, with their defaults: numbers of `COUNTED_QUOTAS`, bytes of the others."""

COUNTED_QUOTAS: Final = ("sandboxes", "calls")

Quotas = dict[str, dict[str, int | None]]
"""The quotas of owners by their names, such as ``uid:1000``, where they differ from those of ``""``; None is no limit.
"""


_OWNER: Final = r"uid:[0-9]{1,10}|key:[A-Za-z0-9_.-]{1,64}"


def parse_quotas(text: str) -> Quotas:
    """Quotas such as ``sandboxes=20,memory=64G; uid:1000: sandboxes=50``. Raises ValueError."""
    quotas: Quotas = {"": dict(QUOTAS)}
    for rule in filter(None, map(str.strip, text.split(";"))):
        owner, _, amounts = rule.rpartition(":")
        if owner and not re.fullmatch(_OWNER, owner.strip()):
            raise ValueError(f"{owner.strip()!r} is no owner: give one such as uid:1000 or key:ci")
        quotas.setdefault(owner.strip(), {}).update(_amount(amount) for amount in amounts.split(","))
    return quotas


def _amount(text: str) -> tuple[str, int | None]:
    name, _, value = (part.strip() for part in text.partition("="))
    if name not in QUOTAS:
        raise ValueError(f"{name!r} is no quota: give {', '.join(QUOTAS)}, such as sandboxes=20,memory=64G")
    if value.lower() == "unlimited":
        return name, None
    if name not in COUNTED_QUOTAS:
        return name, parse_size(value)
    if not re.fullmatch("[0-9]{1,9}", value):
        raise ValueError(f"give {name} a whole number, or unlimited")
    return name, int(value)


LEAST_CLIENT_MEMORY: Final = 32 * 1024**2
_LEAST_RETENTION: Final = "give at least 24h, for which repeated commands get their first answer, or forever"


parse_seconds: Final = number_between(0.0, 86_400.0, "seconds,")
"""Parses seconds, from 0 to a day. Raises ValueError."""


def _level(text: str) -> str:
    if text.lower() not in ("debug", "info", "warning", "error"):
        raise ValueError("give debug, info, warning or error")
    return text.lower()


def _list(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def parse_switch(text: str) -> bool:
    """A yes or no. Raises ValueError."""
    if text.lower() not in ("1", "0", "true", "false", "yes", "no", "on", "off"):
        raise ValueError("give 1 or 0")
    return text.lower() in ("1", "true", "yes", "on")


def _stream(text: str) -> tuple[str, ...]:
    """Addresses to listen on; `tcp_address` says the same of one of them."""
    return () if text == "none" else tuple(_stream_address(address) for address in _list(text))


def _stream_address(text: str) -> str:
    kind, _, place = text.partition(":")
    if kind == "unix":
        return f"unix:{absolute_path(place)}"
    tcp_address(text)
    return text


def tcp_address(address: str) -> tuple[str, int]:
    """The host and port of ``tls://HOST:PORT``, or of ``tcp://HOST:PORT`` without TLS.

    Raises ValueError for others, and for hosts that are not loopback's.
    """
    scheme, _, place = address.partition("://")
    host, _, port = place.rpartition(":")
    if scheme not in ("tls", "tcp") or host not in LOOPBACK or not port.isdigit() or int(port) > 65535:
        raise ValueError(
            "give unix:/PATH, tls://127.0.0.1:PORT or tls://[::1]:PORT, several with commas between, or none"
        )
    return host.strip("[]"), int(port)


def remote_address(address: str) -> tuple[str, int]:
    """The host and port of an address that clients connect to: as `tcp_address`, and with TLS of any host.

    Raises ValueError.
    """
    place = address.removeprefix("tls://")
    host, _, port = place.rpartition(":")
    if place == address:
        return tcp_address(address)
    if not _HOST.fullmatch(host) or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError("give tls://HOST:PORT, with the server's pin behind # if you know it")
    return host.strip("[]"), int(port)


def _advertised(text: str) -> tuple[str, ...]:
    """Addresses of TLS for clients elsewhere. Raises ValueError."""
    addresses = _list(text)
    for address in addresses:
        remote_address(address.partition("#")[0] if address.startswith("tls://") else "")
    return addresses


def _http(text: str) -> tuple[str, ...]:
    """Addresses of the HTTP gateway: ``unix:/PATH``, ``tcp://HOST:PORT``. Raises ValueError."""
    return () if text == "none" else tuple(_http_address(address) for address in re.split(r"[,\s]+", text) if address)


def _http_address(text: str) -> str:
    if text.startswith("unix:"):
        return f"unix:{absolute_path(text.removeprefix('unix:'))}"
    address = text if text.startswith("tcp://") else text.replace("tcp:", "tcp://", 1)
    try:
        if not address.startswith("tcp://"):
            raise ValueError
        tcp_address(address)
    except ValueError:
        raise ValueError(
            "give unix:/PATH, tcp://127.0.0.1:PORT or tcp://[::1]:PORT, several with commas between, or none"
        ) from None
    return address


def refuse_plaintext(address: str) -> None:
    """Raise `not_configured` for ``tcp://`` unless SANDKEEP_STREAM_PLAINTEXT allows it."""
    if address.startswith("tcp://") and not STREAM_PLAINTEXT():
        secure = address.replace("tcp:", "tls:", 1)
        message = (
            f"{address} has no TLS, so that another user who takes that port while the daemon is away receives tokens: "
            f"use {secure}, or, if nobody else uses this machine, set {STREAM_PLAINTEXT.name}=1, for clients too"
        )
        raise SetupError("not_configured", message, setting=STREAM_PLAINTEXT.name)


LOOPBACK: Final = ("127.0.0.1", "[::1]")
_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9a-fA-F:.]{2,45}\]")


def _default_state_dir() -> str:
    if os.geteuid() == 0:
        return "/var/lib/sandkeep"
    return os.path.join(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state"), "sandkeep")


def _default_socket() -> str:
    if os.geteuid() == 0:
        return "/run/sandkeep/sandkeep.sock"
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return (
        os.path.join(runtime, "sandkeep", "sandkeep.sock")
        if runtime
        else os.path.join(_default_state_dir(), "sandkeep.sock")
    )


UID_RANGE: Final = 65_536
"""Number of host uids for root's daemons, from `UID_BASE` on. The first owns the images."""

STATE_DIR = Setting(
    "SANDKEEP_STATE_DIR",
    absolute_path,
    "/var/lib/sandkeep as root, else $XDG_STATE_HOME/sandkeep",
    "The directory of the event log, images and sandboxes. Mode 0700.",
    default=_default_state_dir,
)
SOCKET = Setting(
    "SANDKEEP_SOCKET",
    absolute_path,
    "/run/sandkeep/sandkeep.sock as root, else $XDG_RUNTIME_DIR/sandkeep/sandkeep.sock",
    "The Unix socket of the JSON-RPC API.",
    default=_default_socket,
)
PATIENCE = Setting(
    "SANDKEEP_PATIENCE",
    parse_seconds,
    "60",
    "Seconds that clients wait for a daemon that went away, before they repeat unanswered calls; 0 to fail at once. "
    "The first connection does not wait.",
)
STREAM = Setting(
    "SANDKEEP_STREAM",
    _stream,
    "unix:stream.sock beside SANDKEEP_SOCKET",
    "Addresses of the stream server, separated by commas: `unix:/PATH`, `tls://127.0.0.1:PORT` or `tls://[::1]:PORT`; "
    "`none` for no server. With port 0 the kernel chooses one: `stream.access` returns it.",
    default=lambda: (f"unix:{os.path.dirname(SOCKET())}/stream.sock",),
)
STREAM_PLAINTEXT = Setting(
    "SANDKEEP_STREAM_PLAINTEXT",
    parse_switch,
    "0",
    "With 1, SANDKEEP_STREAM may name `tcp://HOST:PORT` as well, without TLS, and clients send tokens there. Another "
    "user who takes that port while the daemon is away then receives them, and can act as their owners.",
)
STREAM_ORIGINS = Setting(
    "SANDKEEP_STREAM_ORIGINS",
    _list,
    "none",
    "Web origins, such as `https://panel.example`, whose pages may connect to the stream server, separated by commas.",
    default=lambda: (),
)
HTTP = Setting(
    "SANDKEEP_HTTP",
    _http,
    "none",
    "Addresses of the HTTP gateway, separated by commas: `unix:/PATH`, `tcp://127.0.0.1:PORT` or `tcp://[::1]:PORT`. "
    "With port 0 the kernel chooses one: `daemon.status` returns it.",
    default=lambda: (),
)
SOCKET_GROUP = Setting(
    "SANDKEEP_SOCKET_GROUP",
    str,
    "none",
    "Only members of this group, and root, may connect to a root daemon. Without it every local user may, and sees "
    "only their own objects.",
    default=lambda: "",
)
ADMIN_GROUP = Setting(
    "SANDKEEP_ADMIN_GROUP",
    str,
    "none",
    "Members of this group are administrators, like root and the user that the daemon runs as.",
    default=lambda: "",
)
UID_BASE = Setting(
    "SANDKEEP_UID_BASE",
    number_between(100_000, 4_294_000_000 - UID_RANGE),
    "1900000000",
    f"The first of {UID_RANGE} host uids that root's daemon uses: this one owns images, each sandbox has another, at "
    "random. Those of `/etc/passwd`, `/etc/group`, `/etc/subuid` and `/etc/subgid` are left out; choose a range "
    "that no directory service uses either.",
)
UID_REGISTRY = Setting(
    "SANDKEEP_UID_REGISTRY",
    absolute_path,
    "/run/sandkeep/uids",
    "The directory in which all root daemons of a machine register the host uids of their sandboxes. It must be the "
    "same for all of them, owned by root, and empty after a boot.",
)
DISK_LIMIT = Setting(
    "SANDKEEP_DISK_LIMIT",
    parse_size,
    "10G",
    "Approximate disk limit of sandboxes that were created without one.",
)
MEMORY_LIMIT = Setting(
    "SANDKEEP_MEMORY_LIMIT",
    unless("unlimited", at_least(16 * 1024**2, parse_size, "give at least 16M, or unlimited")),
    "2G",
    "Memory limit of new sandboxes that have none of their own, where a control group, or Docker, enforces it. A size "
    "of at least 16M, or `unlimited`.",
)
PIDS_LIMIT = Setting(
    "SANDKEEP_PIDS_LIMIT",
    number_between(16, 4_194_304),
    "2048",
    "Maximum number of processes of local sandboxes that have no limit of their own. For Docker, see "
    "`SANDBOX_DOCKER_PIDS_LIMIT`.",
)
SCRATCH_LIMIT = Setting(
    "SANDKEEP_SCRATCH_LIMIT",
    parse_size,
    "1G",
    "Size of each of `/tmp`, the home directory and `/dev/shm` of local sandboxes. They are in memory: their files "
    "count towards the sandbox's memory limit.",
)
QUOTA = Setting(
    "SANDKEEP_QUOTA",
    parse_quotas,
    ",".join(f"{name}={most if name in COUNTED_QUOTAS else f'{most // 1024**3}G'}" for name, most in QUOTAS.items()),
    "Quotas of each owner, separated by commas; others keep their defaults, and `unlimited` is no limit. Rules for "
    "single owners follow after semicolons: `sandboxes=20,memory=64G; uid:1000: sandboxes=50`.",
)
QUOTA_ADMIN = Setting(
    "SANDKEEP_QUOTA_ADMIN",
    parse_switch,
    "0",
    "With 1, quotas also limit administrators.",
)
CLIENT_MEMORY = Setting(
    "SANDKEEP_CLIENT_MEMORY",
    at_least(LEAST_CLIENT_MEMORY, parse_size, "give at least 32M, so that two of the longest messages fit"),
    "128M",
    "Maximum memory in the daemon for the clients of one user: unfinished messages, calls in flight, and unread "
    "answers. Beyond it a stalled client is disconnected. At least 32M.",
)
RETAIN = Setting(
    "SANDKEEP_RETAIN",
    unless("forever", at_least(86_400.0, parse_age, _LEAST_RETENTION)),
    "30d",
    "Retention of ended sandboxes, with their processes and output, and of removed images. Older events are archived. "
    "An age such as 36h or 30d, at least 24h, or `forever`.",
)
RETAIN_OUTPUT = Setting(
    "SANDKEEP_RETAIN_OUTPUT",
    unless("unlimited", at_least(1024**2, parse_size, "give at least 1M, or unlimited")),
    "1G",
    "Maximum output kept per sandbox, running or not. Beyond it the output of ended processes is dropped, oldest "
    "first, then the beginning of the output of others. A size of at least 1M, or `unlimited`.",
)
SNAPSHOT_RETAIN = Setting(
    "SANDKEEP_SNAPSHOT_RETAIN",
    parse_snapshot_rules,
    "all",
    "Retention of the snapshots of a sandbox: a number, an age, or both, such as `10,30d`. A rule may begin with a "
    "label and a colon; rules are separated by semicolons, and the first that matches applies: "
    "`kind=nightly:7; auto:3,2d; 20`. The last snapshot of a sandbox is always kept.",
)
REMOTE_LIFETIME = Setting(
    "SANDKEEP_REMOTE_LIFETIME",
    unless("unlimited", at_least(60.0, parse_age, "give at least 1m, or unlimited")),
    "24h",
    "Lifetime of sandboxes that cost money while they stand, in a cluster or at Modal, if their creation names none. "
    "The service ends them then, even if the daemon is gone. An age such as 36h, or `unlimited`: then a cluster ends "
    "none by itself, and those of a daemon that is gone stay, and cost, until somebody deletes them. Modal ends any "
    "after 24 hours.",
)
SESSION_START = Setting(
    "SANDKEEP_SESSION_START",
    parse_age,
    "10m",
    "Maximum time in which a session is made ready, and its sandbox is snapshotted before it ends. An age such as 90s.",
)
SESSION_IMAGE = optional(
    "SANDKEEP_SESSION_IMAGE",
    str,
    "The image of new sessions that name none, as those of AstraForge's notebooks: an id, or a reference. It has to be "
    "published to their owners.",
    shown="none: such a session is refused",
)
CLOUD_RUN_IMAGE = optional(
    "SANDKEEP_CLOUD_RUN_IMAGE",
    str,
    "The image of sandboxes that clients of cloud-run-sandbox create: an id, or whatever `image.create` takes. The "
    "stream server speaks their protocol when it is set.",
    shown="none: it is not spoken",
)
STREAM_ADVERTISED = Setting(
    "SANDKEEP_STREAM_ADVERTISED",
    _advertised,
    "the addresses of SANDKEEP_STREAM on TCP",
    "Addresses under which clients elsewhere reach the stream server, separated by commas: tls://HOST:PORT, from which "
    "something forwards TCP to SANDKEEP_STREAM. Their hosts are accepted as Host. Clients whose shared sandbox moves "
    "to this daemon are told these addresses, with the server's pin as #PIN.",
    default=lambda: (),
)
HANDOVER_STOP = Setting(
    "SANDKEEP_HANDOVER_STOP",
    parse_seconds,
    "60",
    "Maximum seconds in which a stopping daemon saves shared sandboxes and gives them up. The rest go on under their "
    "locks, and the next daemon has them; with 0 all do.",
)
SESSION_KEEP = Setting(
    "SANDKEEP_SESSION_KEEP",
    parse_age,
    "24h",
    "How long the sandbox of a session that is due to end is kept while the snapshot before its end fails. An age such "
    "as 12h.",
)
DOCKER_BASE = Setting(
    "SANDKEEP_DOCKER_BASE",
    str,
    "python:3.11-slim",
    "Base image of a plain directory for Docker without `base`. If it is set, everybody may use that image, as if an "
    "administrator had published it.",
)
LOG_LEVEL = Setting(
    "SANDKEEP_LOG_LEVEL", _level, "info", "Log level of the daemon on stderr: debug, info, warning or error."
)
