"""A daemon that tidies up what has grown, again and again, and dies of it; a process of its own, see `test_growth`.

It is asked to redact, archives, is asked to redact what it has archived, and drops output: all with the real parts, on
a state directory that was made beforehand. To have many deaths quickly it forks for each, once everything is imported.
"""

import os
import shutil
import sys
import traceback
from pathlib import Path
from typing import Final

import trio
from tests.support import log_stories
from tests.support.inside import inside
from tests.support.operations import UPKEEP_OF_LOG, operations

from sandkeep import events, failpoints
from sandkeep.events import EVENTS, Meta
from sandkeep.protocol.clock import now_us
from sandkeep.settings.daemon import RETAIN_OUTPUT
from sandkeep_store.upkeep import offline
from sandkeepd.core.operation import STEPS, Upkeep
from sandkeepd.keeper.journal import MAX_BACKLOG_BYTES
from sandkeepd.sandboxes.output_limit import OutputLimit
from sandkeepd.sandboxes.output_times import Mark, OutputTimes

GROWTH: Final = ("segment.", "compact.", "redact.", "output.", "log.")
"""What the points and the events are called that belong to it."""

LOST_BY_DAMAGE: Final = "log.event_lost"
BY_PRUNE: Final = ("output.remove_requested", "output.removed")
"""Of which `test_operations` tells."""

COMMITS: Final = [
    f"{kind}:{side}"
    for kind in sorted(EVENTS)
    if kind.startswith(GROWTH) and kind not in (LOST_BY_DAMAGE, *BY_PRUNE)
    for side in (failpoints.BEFORE, failpoints.AFTER)
]
STEPS_OF_UPKEEP: Final = [f"{each.__name__}.{step}" for each in operations(Upkeep, UPKEEP_OF_LOG) for step in STEPS]
POINTS: Final = [*(point for point in failpoints.POINTS if point.startswith(GROWTH)), *COMMITS, *STEPS_OF_UPKEEP]

SIDE_BY_SIDE: Final = 4
"""Most of the time each waits for the disk."""

MARKER: Final = "xyzzy-4711"
HERE, RUNNING = "sbx_here", "prc_running"
OUTPUT: Final = b"".join(b"%d\n" % number for number in range(400_000))
ANSWERS_BYTES: Final = 3 * MAX_BACKLOG_BYTES + 1024 * 1024


def make(state_dir: str) -> None:
    """Sandboxes that ended, with commands, and one that runs, in which a process writes a lot."""
    os.makedirs(state_dir, mode=0o700)
    appends: list[log_stories.Append] = [
        *log_stories.crowded(HERE, 1),
        _hold("prc_seen", HERE),
        *_end("prc_seen", HERE),
    ]
    for box in ("sbx_1", "sbx_2"):
        appends += [[(box, box, log_stories.requested())], [(box, box, log_stories.created())]]
        for turn in range(20):
            appends += [_hold(f"prc_{box}_{turn}", box), *_end(f"prc_{box}_{turn}", box)]
        appends += log_stories.ending(box)
    appends += [[(RUNNING, HERE, log_stories.launch(HERE, "running"))], [(RUNNING, HERE, events.ProcessStarted(pid=5))]]
    log_stories.write(f"{state_dir}/events.db", appends)
    log = offline.open_log(state_dir)
    processes: dict[str, str] = {}
    log.scan(lambda fact: processes.update({fact.stream: fact.sandbox_id or ""} if "prc_" in fact.stream else {}))
    log.close()
    for process_id, box in processes.items():
        journals = Path(state_dir, "sandboxes", box, "out", "p")
        journals.mkdir(parents=True, exist_ok=True)
        for part in ("stdout", "stderr", "pid"):
            (journals / f"{process_id}.{part}").write_bytes(b"x\n")
        Path(journals.parent, "exits").write_bytes(b"")
        OutputTimes(state_dir).append(box, process_id, [Mark(1, 2, 2)])
    here = Path(state_dir, "sandboxes", HERE, "out")
    (here / "p" / f"{RUNNING}.stdout").write_bytes(OUTPUT)
    offline.rebuild(state_dir)


def _hold(process: str, box: str) -> log_stories.Append:
    command = ["echo", f"{MARKER} of {process}"]
    return [(process, box, events.ProcessLaunchRequested(sandbox_id=box, name=None, command=command))]


def _end(process: str, box: str) -> list[log_stories.Append]:
    ended = events.ProcessExited(exit_code=0, stdout_bytes=2, stderr_bytes=2)
    return [[(process, box, events.ProcessStarted(pid=5)), (process, box, ended)]]


def held(state_dir: str) -> dict[str, int]:
    """Where the marker is: positions by processes."""
    found: dict[str, int] = {}
    log = offline.open_log(state_dir)
    log.scan(lambda fact: found.update({fact.stream: fact.position} if MARKER.encode() in fact.data else {}))
    log.close()
    return found


async def tidy(state_dir: str, here: int, gone: int) -> None:
    """All that there is to do. `here` is a position in what stays, `gone` one in what is archived."""
    async with inside(state_dir) as daemon:
        daemon.sandboxes.runtimes.adopting.clear()  # nobody is
        await daemon.retention.recover()
        await daemon.call("store.redact", position=here)
        await daemon.retention.archive(now_us(), Meta())
        await daemon.call("store.redact", position=gone)
        await OutputLimit(daemon.core).trim()
        OutputTimes(state_dir, most=4).append(HERE, RUNNING, [Mark(at, 10 * at, 2) for at in range(2, 5)])
        await daemon.core.files.flush()


def live(point: str, state_dir: str, here: int, gone: int) -> int:
    """Tidy up in a process that dies at that point; answer how it ended, as `waitpid` tells."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    try:
        failpoints._name, failpoints.armed = point, bool(point)  # type: ignore[misc]
        trio.run(tidy, state_dir, here, gone)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main(root: str, points: list[str]) -> None:
    """For each point: tidy up to it on a copy, and then once more without it. Says how both ended."""
    os.environ[RETAIN_OUTPUT.name] = "1M"
    positions = held(f"{root}/made")
    here, gone = positions["prc_seen"], positions["prc_sbx_1_3"]
    for number in range(SIDE_BY_SIDE):
        if os.fork() == 0:
            for point in points[number::SIDE_BY_SIDE]:
                state_dir = f"{root}/{point}"
                shutil.copytree(f"{root}/made", state_dir)
                if point == "output.answers_cut":
                    Path(state_dir, "sandboxes", HERE, "out", "exits").write_bytes(b"x\n" * (ANSWERS_BYTES // 2))
                ends = live(point, state_dir, here, gone), live("", state_dir, here, gone)
                os.write(1, f"{point} {ends[0]} {ends[1]}\n".encode())
            os._exit(0)
    for _ in range(SIDE_BY_SIDE):
        os.wait()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
