"""The settings of the Docker provider, for the administrator: limits that no caller can loosen. See `settings` for the
manner.

The names and meanings of the ``SANDBOX_DOCKER_*`` are those of AstraForge's sandboxes.
"""

import os
from typing import Final, Literal, TypeAlias, cast, get_args

from sandkeep.settings.daemon import Setting, at_least, matching, number_between, optional, parse_size, parse_switch

VolumeMode: TypeAlias = Literal["session", "user", "static", "none"]

_name: Final = matching(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}", "give a name of letters, digits, '_', '.' and '-'")


def _socket_of_engine(text: str) -> str:
    if not text.startswith("unix:///"):
        raise ValueError(
            "give unix:///PATH: the engine has to run on this machine, as sandboxes share directories with it"
        )
    return os.path.normpath(text.removeprefix("unix://"))


def _volume_mode(text: str) -> VolumeMode:
    if text not in get_args(VolumeMode):
        raise ValueError("give session, user, static or none")
    return cast("VolumeMode", text)


def _build_network(text: str) -> str:
    if text == "host":
        raise ValueError("give none, bridge, or the name of one of the engine's networks; builds never get the host's")
    return _name(text)


PUBLIC: Final = "public"
_registry: Final = matching(
    r"[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?", "give hosts such as registry.example:5000, or public"
)


def _registries(text: str) -> tuple[str, ...]:
    return tuple(_registry(part) for part in text.replace(",", " ").split())


HOST = Setting(
    "DOCKER_HOST",
    _socket_of_engine,
    "unix:///var/run/docker.sock",
    "The Docker engine that the Docker provider uses: `unix:///PATH`.",
)
REGISTRIES = Setting(
    "SANDKEEP_REGISTRIES",
    _registries,
    "docker.io",
    "Registries of which users who are no administrators, and API keys, may name images, by `HOST` or `HOST:PORT`, "
    "such as `docker.io, registry.lan:5000`. "
    "A registry tells the engine where to get a token and content, and the engine fetches that from this machine's "
    "network, loopback and private addresses too, and tells the registry the token: list only those that you trust. "
    "`public` stands for all by names that have public addresses alone, whoever runs them.",
)
VOLUME_MODE: Setting[VolumeMode] = Setting(
    "SANDBOX_DOCKER_VOLUME_MODE",
    _volume_mode,
    "session",
    "Storage of a Docker sandbox's workspace: `session`, a volume of its own, removed with it; `user`, one volume for "
    "all sandboxes of an owner; `static`, one volume for all; `none`, memory. New volumes start with the image's.",
)
VOLUME_NAME = Setting(
    "SANDBOX_DOCKER_VOLUME_NAME", _name, "none", "The volume of the mode `static`.", default=lambda: ""
)
VOLUME_PREFIX = Setting(
    "SANDBOX_DOCKER_VOLUME_PREFIX", _name, "sandkeep-", "Prefix of the names of volumes that Sandkeep creates."
)
READ_ONLY = Setting(
    "SANDBOX_DOCKER_READ_ONLY",
    parse_switch,
    "1",
    "Mount the files of Docker sandboxes read-only, except the workspace, volumes, `/tmp` and `/run`.",
)
WRITABLE_ROOT = Setting(
    "SANDBOX_DOCKER_WRITABLE_ROOT",
    parse_switch,
    "1",
    "Let callers ask for Docker sandboxes with a root file system that can be written (`create --writable-root`).",
)
USER = Setting(
    "SANDBOX_DOCKER_USER",
    matching(r"[0-9]{1,9}(:[0-9]{1,9})?", "give a uid such as 1000, or uid:gid"),
    "the image's own",
    "User of the processes of Docker sandboxes, as `uid` or `uid:gid`. Callers cannot choose another then.",
    default=lambda: "",
)
NETWORK = Setting(
    "SANDBOX_DOCKER_NETWORK",
    _name,
    "none, and bridge for callers who ask for it",
    "The network of Docker sandboxes that did not ask for one: `none`, `bridge`, or a network of the engine's by name, "
    "which callers then get for `bridge`. With `none` they get no other.",
    default=lambda: "",
)
SECCOMP = Setting(
    "SANDBOX_DOCKER_SECCOMP",
    matching(
        r"default|engine|unconfined|(?s:/.*)",
        "give default, engine, unconfined, or the absolute path of a profile in JSON",
    ),
    "default",
    "The seccomp profile of Docker sandboxes: `default`, that of local sandboxes, as an engine's own may be older; "
    "`engine`, the engine's own; the absolute path of a profile; or `unconfined`.",
)
PIDS_LIMIT = optional(
    "SANDBOX_DOCKER_PIDS_LIMIT",
    number_between(16, 4_000_000),
    "Maximum number of processes of a Docker sandbox. Callers can then ask for fewer, not for more.",
    shown="512, and more for callers who ask for it",
)
DEFAULT_PIDS: Final = 512
BUILDERS = Setting(
    "SANDKEEP_BUILDERS",
    str,
    "all",
    "Who may build images by a Dockerfile: `all`; `none`, not even root; or a group by name: its members, root, and "
    "the user that the daemon runs as. Images by name, and directories on a base, are for everybody.",
)
BUILD_MEMORY = Setting(  # the engine's own start of a step takes some megabytes
    "SANDKEEP_BUILD_MEMORY", at_least(16 * 1024**2, parse_size, "give at least 16M"), "4G", "Memory limit of a build."
)
BUILD_CPUS = Setting("SANDKEEP_BUILD_CPUS", number_between(0.01, 4096.0), "4", "CPU limit of a build, in cores.")
BUILD_PIDS = Setting(
    "SANDKEEP_BUILD_PIDS",
    number_between(16, 4_000_000),
    "4096",
    "Maximum number of processes of a build. Only root's daemon can enforce it.",
)
BUILD_TIME = Setting(
    "SANDKEEP_BUILD_TIME",
    number_between(1.0, 7 * 86_400.0),
    "3600",
    "Time limit of a build, in seconds. Pulling its base images does not count.",
)
BUILD_NETWORK = Setting(
    "SANDKEEP_BUILD_NETWORK",
    _build_network,
    "that of SANDBOX_DOCKER_NETWORK; bridge if that is unset or host",
    "Network of the steps of builds: `none`, `bridge`, or a network of the engine's by name. Bases are pulled anyway.",
    default=lambda: "",
)
