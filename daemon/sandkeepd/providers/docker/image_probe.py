"""The facts about an image that planning a sandbox needs: found once, by running it for a moment.

The container for that has its image's own user and no rights, no network and no writable files, and is removed. Its
output comes from the image, and is believed only as far as it can be checked or hurts only its owner.
"""

import io
import posixpath
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from msgspec import Struct

from sandkeep.errors import CallerError
from sandkeepd.providers.docker.container import LOG_LABEL
from sandkeepd.providers.docker.engine import Client
from sandkeepd.providers.docker.plan import WORKSPACE, Details

PROBE_LABEL: Final = "sandkeep.probe"
"""The label of probe containers; its value is our id of the image."""

ANSWER_S: Final = 15
"""Seconds that an image's shell may take."""

_MOST_SAID_BYTES: Final = 16 * 1024
_MOST_PASSWD_BYTES: Final = 1024 * 1024
_MOST_HEADER_BYTES: Final = 64 * 1024
_MOST_ID: Final = 2**32 - 2
NO_SHELL: Final = "its image has no shell"
_MARK: Final = "sandkeep-probe"

# Builtins only. The first word of a line is the name of the rest.
_SCRIPT: Final = f"""
find() {{
	IFS=:
	for place in $PATH; do
		case $place in /*) [ -f "$place/$1" ] && [ -x "$place/$1" ] && {{ found=$place/$1; return; }} ;; esac
	done
	found=
}}
echo {_MARK}
if [ -x /bin/sh ]; then found=/bin/sh; else find sh; fi
echo "sh $found"
find tmux
echo "tmux $found"
IFS=' 	'
while read -r key first second rest; do
	case $key in Uid:) echo "uid $second" ;; Gid:) echo "gid $second" ;; esac
done </proc/self/status
echo end
"""


class Answer(Struct, frozen=True, kw_only=True):
    """The understood part of the container's output."""

    shell: str | None = None
    tmux: bool = False
    user: tuple[int, int] | None = None


def probe(client: Client, image_id: str, found: dict[str, Any], tag: str, log_id: str) -> Details:
    """Probe the details of an image that the engine describes as `found`. Blocks. Raises `invalid` for an image that no
    sandbox can be made of.
    """
    config = found.get("Config") or {}
    with _container(client, _configuration("/bin/sh", found["Id"], image_id, log_id)) as container:
        answer, why = _ask(client, container)
        workdir = posixpath.normpath(f"/{config.get('WorkingDir') or ''}").replace("//", "/")
        workspace = WORKSPACE if workdir == "/" else workdir
        user = answer.user or _user_by_files(client, container, config.get("User") or "")
        writable = _is_writable(client, container, workspace, user)
    if why == NO_SHELL:
        with _container(client, _configuration("sh", found["Id"], image_id, log_id)) as container:
            answer, why = _ask(client, container)
    return Details(
        docker_image_id=found["Id"], docker_image_tag=tag, user=user, shell=answer.shell, tmux=answer.tmux,
        workdir=workdir, writable=writable, why=why, env=config.get("Env") or [],
    )  # fmt: skip


@contextmanager
def _container(client: Client, configuration: dict[str, Any]) -> Iterator[str]:
    """Make a container, without starting it, for the length of a block."""
    from docker.errors import APIError

    container: str = client.create_container_from_config(configuration)["Id"]  # type: ignore[no-untyped-call]
    try:
        yield container
    finally:
        with suppress(APIError):  # its remains are found by their label
            client.remove_container(container, force=True, v=True)


def _configuration(shell: str, docker_image_id: str, image_id: str, log_id: str) -> dict[str, Any]:
    return {
        "Image": docker_image_id,
        "Entrypoint": [shell, "-c", _SCRIPT],
        "Cmd": [],
        "Labels": {PROBE_LABEL: image_id, LOG_LABEL: log_id},
        "WorkingDir": "/",
        "NetworkDisabled": True,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "NetworkMode": "none",
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true"],
            "ReadonlyRootfs": True,
            "Tmpfs": {"/tmp": "rw,nosuid,nodev,size=16m"},  # noqa: S108 - inside
            "Memory": 256 * 1024**2,
            "MemorySwap": 256 * 1024**2,
            "PidsLimit": 64,
            "NanoCpus": 1_000_000_000,
            "Init": False,
            "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "64k", "max-file": "1"}},
            "RestartPolicy": {"Name": "no"},
        },
    }


def _ask(client: Client, container: str) -> tuple[Answer, str | None]:
    """Ask the image's shell for its capabilities; return the reason if it cannot answer."""
    import requests
    from docker.errors import APIError

    try:
        client.start(container)
    except APIError as refused:
        return Answer(), _why_not_started(" ".join(str(refused.explanation).split()))
    try:
        code = client.wait(container, timeout=ANSWER_S)["StatusCode"]
    except requests.RequestException:  # it is still busy
        with suppress(APIError):
            client.kill(container)
        return Answer(), f"its image's shell did not answer within {ANSWER_S} s"
    output = client.logs(container, stdout=True, stderr=False, tail=64)[:_MOST_SAID_BYTES]
    answer = parse_answer(output)
    if answer is None:
        message = output.decode(errors="replace").strip()[:100]
        return Answer(), f"its image's shell does not work: it ended with {code}" + (
            f", saying {message!r}" if message else ""
        )
    return answer, None


def _why_not_started(message: str) -> str:
    lowered = message.lower()
    if "executable file not found" in lowered or "no such file or directory" in lowered:
        return NO_SHELL
    if "unable to find user" in lowered or "no matching entries in" in lowered:
        raise CallerError("invalid", "source: the image's own user is not in its /etc/passwd: build it with another")
    return f"its image's shell cannot be started: {message[:300]}"


def parse_answer(output: bytes) -> Answer | None:
    """Parse the lines; return None when they are not our script's."""
    lines = output.decode("utf-8", "replace").splitlines()
    if not lines or lines[0] != _MARK or lines[-1] != "end":
        return None
    told = {word: rest for word, _, rest in (line.partition(" ") for line in lines[1:-1])}
    uid, gid = _number(told.get("uid", "")), _number(told.get("gid", ""))
    return Answer(
        shell=_path(told.get("sh", "")), tmux=_path(told.get("tmux", "")) is not None,
        user=None if uid is None or gid is None else (uid, gid),
    )  # fmt: skip


def _path(text: str) -> str | None:
    return text if re.fullmatch(r"(/[A-Za-z0-9_.+-]{1,255}){1,32}", text) else None


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,10}", text) and int(text) <= _MOST_ID else None


# -- facts from its files ----------------------------------------------------------------------------------------------


def _is_writable(client: Client, container: str, directory: str, user: tuple[int, int]) -> bool:
    """Return True if the user may write in a directory, having no capabilities."""
    place = _first_entry(client, container, f"{directory}/.")
    if place is None or not place.isdir():
        return False
    if place.uid == user[0]:
        return place.mode & 0o300 == 0o300
    return place.mode & 0o030 == 0o030 if place.gid == user[1] else place.mode & 0o003 == 0o003


def _user_by_files(client: Client, container: str, named: str) -> tuple[int, int]:
    """Return the uid and gid of the user that an image names, if its shell could not tell them. Raises `invalid`."""
    user, _, group = named.partition(":")
    uid, gid = _number(user or "0"), _number(group) if group else None
    passwd = list(_table(_content(client, container, "/etc/passwd")))
    mine = next((row for row in passwd if row[0] == user or (uid is not None and row[2] == str(uid))), None)
    if uid is None and mine is not None:
        uid = _number(mine[2])
    if gid is None and not group:
        gid = _number(mine[3]) if mine is not None else 0
    if gid is None:
        groups = _table(_content(client, container, "/etc/group"))
        gid = next((_number(row[2]) for row in groups if row[0] == group), None)
    if uid is None or gid is None:
        raise CallerError("invalid", f"source: the image's own user {named[:100]!r} is not in its /etc/passwd")
    return uid, gid


def _table(content: bytes) -> Iterator[list[str]]:
    for line in content.decode("utf-8", "replace").splitlines():
        row = line.split(":")
        if len(row) >= 3:
            yield [*row, ""]


def _content(client: Client, container: str, path: str) -> bytes:
    with suppress(tarfile.TarError), _archive(client, container, path) as archive:
        entry = archive.next()
        file = archive.extractfile(entry) if entry is not None and entry.isreg() else None
        return file.read(_MOST_PASSWD_BYTES) if file is not None else b""
    return b""


def _first_entry(client: Client, container: str, path: str) -> tarfile.TarInfo | None:
    with suppress(tarfile.TarError), _archive(client, container, path) as archive:
        return archive.next()
    return None


def _archive(client: Client, container: str, path: str) -> tarfile.TarFile:
    """Open the beginning of the engine's archive of a path. Raises TarError when the path is missing."""
    from docker.errors import NotFound

    try:
        pieces, _ = client.get_archive(container, path, chunk_size=64 * 1024)
    except NotFound:
        raise tarfile.TarError(path) from None
    beginning = io.BytesIO()
    for piece in pieces:
        beginning.write(piece)
        if beginning.tell() > _MOST_PASSWD_BYTES + _MOST_HEADER_BYTES:
            break
    beginning.seek(0)
    return tarfile.open(fileobj=beginning, mode="r:")
