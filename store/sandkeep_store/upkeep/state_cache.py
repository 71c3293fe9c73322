"""The cached fold: the state as of some position in a file, so that a start folds only the later events.

It holds nothing that the log does not, and is used only if it is surely valid: it is whole, of this log, its last event
is the log's at that position, and it was folded by the present code. An invalid one is logged and ignored, and the
whole log is folded.

The file: a line with its type, a CRC-32 of all that follows, and records of msgpack, each after its length: the header,
then every sandbox with its processes.
"""

import contextlib
import hashlib
import logging
import os
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Final
from zlib import crc32

import msgspec
from msgspec import Struct

from sandkeep import events, lifecycle, model
from sandkeep.system.durable import Replacement, sync_directory
from sandkeep.version import VERSION
from sandkeep_store import views
from sandkeep_store.eventlog import codec, fold
from sandkeep_store.eventlog.log import EventLog
from sandkeep_store.views import blanks
from sandkeep_store.views.artifacts import ArtifactState
from sandkeep_store.views.branches import CommitState, MergeState
from sandkeep_store.views.checkpoints import CheckpointState
from sandkeep_store.views.images import ImageState
from sandkeep_store.views.locks import LockState
from sandkeep_store.views.log import LogState
from sandkeep_store.views.objects import Objects
from sandkeep_store.views.processes import ProcessState
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.sessions import SessionState
from sandkeep_store.views.snapshots import ForkState, SnapshotState
from sandkeep_store.views.state import State
from sandkeep_store.views.volumes import VolumeState

logger = logging.getLogger("sandkeepd")

FILE_NAME: Final = "folded-state"
_MAGIC: Final = b"Sandkeep's folded state; it can be removed while no daemon runs.\n"
_U32: Final = struct.Struct("<I")
_REFERENCES: Final = ("active", "named", "recent_named", "recent_unnamed")
_NOT_KEPT: Final = ("seen",)


class Header(Struct, array_like=True):
    """The identity of the cached state: log `log_id` after the event at `position`, whose row has checksum `crc`."""

    fingerprint: str
    log_id: str
    position: int
    crc: int
    sandboxes: int
    log: LogState
    images: list[ImageState]
    snapshots: list[SnapshotState]
    checkpoints: list[CheckpointState]
    forks: list[ForkState]
    locks: list[LockState]
    sessions: list[SessionState]
    artifacts: list[ArtifactState]
    volumes: list[VolumeState]
    merges: list[MergeState]
    commits: list[CommitState]
    ended_locks: list[str]


_OWN: Final = [f for f in msgspec.structs.fields(SandboxState) if f.name not in (*_REFERENCES, *_NOT_KEPT)]
_OWN_NAMES: Final = [field.name for field in _OWN]
_Own: Final = msgspec.defstruct("_Own", [(field.name, field.type) for field in _OWN], array_like=True)


class _Sandbox(Struct, array_like=True):
    """A sandbox with its processes and their places among all; to the processes the rest refers by number."""

    own: _Own  # type: ignore[valid-type]
    processes: list[ProcessState]
    places: list[int]
    active: list[int]
    named: dict[str, int]
    recent_named: list[int]
    recent_unnamed: list[int]


_encode: Final = msgspec.msgpack.Encoder().encode
_header: Final = msgspec.msgpack.Decoder(Header).decode
_sandbox: Final = msgspec.msgpack.Decoder(_Sandbox).decode


@cache
def fingerprint() -> str:
    """Return a digest of the sources of the folding code."""
    digest = hashlib.sha256(f"{VERSION} msgspec {msgspec.__version__}".encode())
    folder = os.path.dirname(views.__file__)
    sources = [events.__file__, lifecycle.__file__, model.__file__, blanks.__file__, codec.__file__, fold.__file__]
    sources.append(__file__)
    for place in (folder, f"{folder}/folds"):
        sources += [f"{place}/{name}" for name in sorted(os.listdir(place)) if name.endswith(".py")]
    for source in sources:
        with open(source, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def records(state: State, log: EventLog) -> Iterator[bytes]:
    """The state as records; equal states have equal ones."""
    crc = log.reader.row_checksum(state.position) or 0
    header = Header(
        fingerprint=fingerprint(),
        log_id=log.log_id,
        position=state.position,
        crc=crc,
        sandboxes=len(state.sandboxes),
        log=state.log,
        images=list(state.images.values()),
        snapshots=list(state.snapshots.values()),
        checkpoints=list(state.checkpoints.values()),
        forks=list(state.forks.values()),
        locks=list(state.locks.values()),
        sessions=list(state.sessions.values()),
        artifacts=list(state.artifacts.values()),
        volumes=list(state.volumes.values()),
        merges=list(state.merges.values()),
        commits=list(state.commits.values()),
        ended_locks=list(state.ended_locks),
    )
    yield _encode(header)
    of: dict[str, list[tuple[int, ProcessState]]] = {name: [] for name in state.sandboxes}
    for place, process in enumerate(state.processes.values()):
        of.get(process.sandbox_id, []).append((place, process))
    for sandbox in state.sandboxes.values():
        yield _encode(_record(sandbox, of[sandbox.sandbox_id]))


def _record(sandbox: SandboxState, placed: list[tuple[int, ProcessState]]) -> _Sandbox:
    number = {process.process_id: at for at, (_, process) in enumerate(placed)}
    return _Sandbox(
        own=_Own(*(getattr(sandbox, name) for name in _OWN_NAMES)),
        processes=[process for _, process in placed],
        places=[place for place, _ in placed],
        active=[number[process_id] for process_id in sandbox.active],
        named={name: number[process.process_id] for name, process in sandbox.named.items()},
        recent_named=[number[process.process_id] for process in sandbox.recent_named],
        recent_unnamed=[number[process.process_id] for process in sandbox.recent_unnamed],
    )


def save(state_dir: str, state: State, log: EventLog) -> None:
    """Write the state, whole or not at all. Blocks. Raises OSError.

    The state must not change meanwhile, and its last event must be in the log.
    """
    with Replacement(f"{state_dir}/{FILE_NAME}") as new:
        _write(new.file, records(state, log))
    # Without an fsync of the directory: after a power cut the file of before is as good.


def discard(state_dir: str) -> None:
    """Remove the file and an unfinished one, durably. Blocks. Raises OSError."""
    for name in (FILE_NAME, f"{FILE_NAME}.new"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{state_dir}/{name}")
    sync_directory(state_dir)


def _write(file: Any, parts: Iterable[bytes]) -> None:
    crc = 0
    file.write(_MAGIC + _U32.pack(0))
    for part in parts:
        whole = _U32.pack(len(part)) + part
        crc = crc32(whole, crc)
        file.write(whole)
    file.seek(len(_MAGIC))
    file.write(_U32.pack(crc))


def load(state_dir: str, log: EventLog) -> State | None:
    """Return the cached state, or None if there is none that is valid: then the reason is logged. Blocks."""
    try:
        with open(f"{state_dir}/{FILE_NAME}", "rb") as file:
            content = file.read()
        return _restored(content, log)
    except FileNotFoundError:
        return None
    except OSError as error:
        why = str(error.strerror)
    except _UnusableError as unusable:
        why = str(unusable)
    except (msgspec.MsgspecError, IndexError, TypeError) as error:
        why = f"its content is not understood: {error}"
    logger.warning("the cached fold is passed over, and the whole log folded", extra={"why": why})
    return None


class _UnusableError(Exception):
    """A file that does not stand for the log's state."""


def _restored(content: bytes, log: EventLog) -> State:
    start = len(_MAGIC) + _U32.size
    if not content.startswith(_MAGIC) or len(content) < start:
        raise _UnusableError("it is no such file")
    body = memoryview(content)[start:]
    if crc32(body) != _U32.unpack_from(content, len(_MAGIC))[0]:
        raise _UnusableError("it is damaged")
    parts = _split(body)
    header = _header(next(parts))
    if header.fingerprint != fingerprint():
        raise _UnusableError("another version of Sandkeep wrote it")
    if header.log_id != log.log_id:
        raise _UnusableError("it is of another log")
    if header.position > log.head or log.reader.row_checksum(header.position) != header.crc:
        raise _UnusableError(f"the log has not the event at position {header.position} that it has seen")
    state = State()
    state.position = state.cached_upto = header.position
    state.log = header.log
    state.images = Objects((image.image_id, image) for image in header.images)
    state.snapshots = Objects((snapshot.snapshot_id, snapshot) for snapshot in header.snapshots)
    state.checkpoints = Objects((checkpoint.checkpoint_id, checkpoint) for checkpoint in header.checkpoints)
    state.forks = {fork.fork_id: fork for fork in header.forks}
    state.locks = Objects((lock.lock_id, lock) for lock in header.locks)
    state.artifacts = Objects((artifact.artifact_id, artifact) for artifact in header.artifacts)
    state.volumes = Objects((volume.volume_id, volume) for volume in header.volumes)
    state.merges = Objects((merge.merge_id, merge) for merge in header.merges)
    state.commits = Objects((commit.commit_id, commit) for commit in header.commits)
    state.sessions = Objects((session.key, session) for session in header.sessions)
    for session in header.sessions:
        state.index_session(session)
    state.ended_locks = deque(header.ended_locks)
    placed: list[tuple[int, ProcessState]] = []
    for part in parts:
        placed += _add(state, _sandbox(part))
    if len(state.sandboxes) != header.sandboxes:
        raise _UnusableError("it is incomplete")
    state.index_names()
    state.index_image_names()
    placed.sort(key=lambda pair: pair[0])
    state.processes = {process.process_id: process for _, process in placed}
    return state


def _split(body: memoryview) -> Iterator[memoryview]:
    at = 0
    while at < len(body):
        (length,) = _U32.unpack_from(body, at)
        at += _U32.size
        yield body[at : at + length]
        at += length


def _add(state: State, record: _Sandbox) -> Iterable[tuple[int, ProcessState]]:
    processes = record.processes
    active = [processes[number] for number in record.active]
    sandbox = SandboxState(
        **{name: getattr(record.own, name) for name in _OWN_NAMES},
        active={process.process_id: process for process in active},
        named={name: processes[number] for name, number in record.named.items()},
        recent_named=[processes[number] for number in record.recent_named],
        recent_unnamed=[processes[number] for number in record.recent_unnamed],
    )
    state.sandboxes[sandbox.sandbox_id] = sandbox
    return zip(record.places, processes, strict=True)


def difference(state_dir: str, log: EventLog, truth: State) -> list[str]:
    """Say whether the file leads to another state than `truth`, which was folded from the log alone."""
    cached = load(state_dir, log)
    if cached is None or cached.position > truth.position:
        return []
    catch_up(cached, log, truth.position)
    if list(records(cached, log)) == list(records(truth, log)):
        return []
    return [f"{state_dir}/{FILE_NAME} differs from the log: stop the daemon and remove it, it is made anew"]


def catch_up(state: State, log: EventLog, upto: int | None = None) -> None:
    """Move a state on to the log's last event, or to an earlier one. Raises as `EventLog.scan` does. Blocks."""
    apply = state.apply
    log.scan(lambda fact: apply(fact.event, fact), state.position, upto)  # type: ignore[arg-type]  # it is decoded
