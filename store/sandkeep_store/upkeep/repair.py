"""Repair of a damaged log, without a daemon: readable events go into a new file, and losses are reported.

Nothing is thrown away: the damaged files are copied into quarantine first. A lost event leaves ``log.event_lost`` in
its position, so that no position is used twice, and in its place in its stream if its neighbours or an index tell which
that was. Positions that only the witness or a `metadata.json` has seen, beyond the last readable event, count as lost
too. Damaged segments of the archive go into quarantine.

Killed at any of its `STEPS`, a repair leaves the old files, or a mark with which no daemon starts: the next repair then
finishes it.
"""

import contextlib
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Sequence
from typing import Final

from sandkeep import failpoints
from sandkeep.errors import DaemonError
from sandkeep.model import RepairReport
from sandkeep.system import durable
from sandkeep.system.durable import sync
from sandkeep_store.eventlog import witness
from sandkeep_store.eventlog.database import exclusive_lock, repairing
from sandkeep_store.upkeep import offline, segments, state_cache
from sandkeep_store.upkeep.salvage import Salvage, is_file

QUARANTINE: Final = "quarantine"
REPORT: Final = "report"
"""The file beside the damaged ones that lists the problems, a line each."""
STEPS: Final = (
    "repair.copied",
    "repair.filled",
    "repair.proved",
    "repair.quarantined",
    "repair.marked",
    "repair.cleared",
    "repair.exchanged",
    "repair.done",
    "repair.segment_moved",
)
WORK: Final = "repair.work"
_FILES: Final = (offline.LOG_NAME, f"{offline.LOG_NAME}-wal", witness.path_of(offline.LOG_NAME))


def repair(state_dir: str, *, yes: bool) -> RepairReport:
    """Report the losses of a damaged log and its archive; with `yes` also repair them. Blocks.

    Raises `conflict` while a daemon uses it, and `storage_unavailable` when nothing can be read of it at all.
    """
    path = f"{state_dir}/{offline.LOG_NAME}"
    if not os.path.exists(repairing(path)):
        offline.require_log(state_dir)
    work = f"{state_dir}/{WORK}"
    with exclusive_lock(path):
        shutil.rmtree(work, ignore_errors=True)
        os.mkdir(work, 0o700)
        try:
            _copy(_source(path), work)
            failpoints.reach("repair.copied")
            _pad(f"{work}/{offline.LOG_NAME}")
            salvage = Salvage(f"{work}/{offline.LOG_NAME}", f"{work}/new.db", state_dir, _source(path))
            kept, problems = salvage.run()
            broken = segments.broken(state_dir, salvage.log_id)
            quarantine = None
            if yes and (problems or os.path.exists(repairing(path))):
                quarantine = _replace(path, f"{work}/new.db", [*problems, *broken.values()])
        finally:
            shutil.rmtree(work, ignore_errors=True)
    if broken and yes:
        quarantine = _set_aside(state_dir, list(broken), quarantine or _new_quarantine(state_dir))
    if quarantine:
        offline.rebuild(state_dir)
    problems += broken.values()
    return RepairReport(kept=kept, problems=problems, quarantine=quarantine, mended=bool(quarantine))


def _source(path: str) -> str:
    """The directory with the damaged files: in quarantine already, when an earlier repair was interrupted."""
    with contextlib.suppress(FileNotFoundError), open(repairing(path), encoding="utf-8") as file:
        return file.read()
    return os.path.dirname(path)


def _copy(source: str, target: str) -> None:
    """Not by Python: closing a file that SQLite has locked in this process would drop the lock."""
    for name in _FILES:
        if is_file(f"{source}/{name}"):
            command = ["cp", "--", f"{source}/{name}", f"{target}/{name}"]
            done = subprocess.run(command, capture_output=True, check=False)
            if done.returncode:
                stderr = done.stderr.decode(errors="replace").strip()
                raise DaemonError(
                    "storage_unavailable", f"the log cannot be copied ({stderr}): free space or repair the disk"
                )


def _pad(path: str) -> None:
    """Make a file that was cut as long as its header says: SQLite reads nothing of one that is shorter."""
    with open(path, "rb") as file:
        head = file.read(32)
    if len(head) == 32:
        page, pages = struct.unpack(">H", head[16:18])[0], struct.unpack(">I", head[28:32])[0]
        if page * pages > os.path.getsize(path) and pages < 2**24:
            os.truncate(path, page * pages)


def _replace(path: str, new: str, problems: Sequence[str]) -> str:
    """Move the old files into quarantine and the new one into place; return the quarantine. A crash in between leaves a
    mark, with which no daemon starts, and the next repair continues from the quarantine.
    """
    state_dir, mark = os.path.dirname(path), repairing(path)
    sync(witness.path_of(new))
    quarantine = _source(path)
    if quarantine == state_dir:
        quarantine = _new_quarantine(state_dir)
        _copy(state_dir, quarantine)
        with open(f"{quarantine}/{REPORT}", "w", encoding="utf-8") as report:
            report.writelines(f"{problem}\n" for problem in problems)
        for name in os.listdir(quarantine):
            sync(f"{quarantine}/{name}")
        for folder in (quarantine, f"{state_dir}/{QUARANTINE}"):
            sync(folder)
        failpoints.reach("repair.quarantined")
        durable.replace(mark, quarantine.encode())
    failpoints.reach("repair.marked")
    for name in (f"{path}-wal", witness.path_of(path), f"{state_dir}/{state_cache.FILE_NAME}"):
        if os.path.lexists(name):
            os.unlink(name) if is_file(name) else os.rename(name, f"{quarantine}/{os.path.basename(name)}")
    failpoints.reach("repair.cleared")
    os.rename(new, path)
    os.rename(witness.path_of(new), witness.path_of(path))
    sync(state_dir)
    failpoints.reach("repair.exchanged")
    os.unlink(mark)
    sync(state_dir)
    failpoints.reach("repair.done")
    return quarantine


def _new_quarantine(state_dir: str) -> str:
    path = f"{state_dir}/{QUARANTINE}/{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"
    os.makedirs(path, mode=0o700)
    return path


def _set_aside(state_dir: str, names: Sequence[str], quarantine: str) -> str:
    """Move segments into quarantine; answer where that is."""
    for name in names:
        os.rename(f"{state_dir}/{segments.FOLDER}/{name}", f"{quarantine}/{name}")
        failpoints.reach("repair.segment_moved")
    sync(quarantine)
    sync(f"{state_dir}/{segments.FOLDER}")
    return quarantine
