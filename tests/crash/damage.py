"""A state directory with a bit of everything, ways to damage one, and what must be true of a damaged one."""

import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import log_stories

from sandkeep.errors import SandkeepError
from sandkeep_store.eventlog.database import repairing
from sandkeep_store.eventlog.log import EventLog, Recorded
from sandkeep_store.upkeep import offline, state_cache
from sandkeep_store.upkeep.repair import repair
from sandkeepd.app import daemon

PAGE = 4096
Facts = dict[int, Recorded]


class Pristine(NamedTuple):
    """The directory, what its log holds, and its state, as records."""

    directory: str
    facts: Facts
    state: list[bytes]


def build(directory: str, seed: int = 1) -> Pristine:
    """Sandboxes of every fate, some of them in the archive, documents, a cached fold; and a daemon that was killed, so
    that the last events are in the write-ahead log.
    """
    work = f"{directory}.building"
    os.mkdir(work)
    path = f"{work}/{offline.LOG_NAME}"
    log_stories.write(path, log_stories.tangle(seed, steps=300))
    log_stories.write(path, (append for box in ("sbx_a", "sbx_b") for append in box_and_end(box)))
    offline.compact(work, 0.001)
    log_stories.write(path, log_stories.crowded("sbx_crowd", seed))
    log = EventLog.open(path)
    state_cache.save(work, offline.fold(log), log)
    log.close()
    offline.rebuild(work)
    leave_in_the_wal(path, directory)
    look = shutil.copytree(directory, f"{directory}.look")
    offline.rebuild(look)
    shutil.copytree(f"{look}/sandboxes", f"{directory}/sandboxes", dirs_exist_ok=True)
    log = EventLog.open(f"{look}/{offline.LOG_NAME}")
    state = list(state_cache.records(offline.fold(log), log))
    log.close()
    pristine = Pristine(directory, facts_of(look), state)
    for folder in (work, look):
        shutil.rmtree(folder)
    return pristine


def box_and_end(box: str) -> Iterator[log_stories.Append]:
    """A short life."""
    yield [(box, box, log_stories.requested())]
    yield [(box, box, log_stories.created())]
    for number in range(20):
        yield from log_stories.execution(box, f"prc_{box}_{number}")
    yield from log_stories.ending(box)


def leave_in_the_wal(path: str, directory: str) -> None:
    """Append some more, and copy everything as it lies there while the log is open."""
    log = EventLog.open(path)
    log._database.writer.execute("PRAGMA wal_autocheckpoint = 0")
    recorder = log._recorder
    for append in (
        append for number in range(15) for append in log_stories.execution("sbx_crowd", f"prc_late_{number}")
    ):
        recorder.know({name for stream, box, _ in append for name in (stream, box) if name})
        drafts = []
        for at, (stream, box, event) in enumerate(append, 1):
            revision = recorder.revision(stream) + (at if len(append) > 1 else 1)
            drafts.append(
                log_stories.Draft(
                    stream, revision, box, event.type, event.version, log_stories.CODEC.encode(event), log_stories.META
                )
            )
        recorder.insert([drafts], time_us=log_stories.START_US)
    shutil.copytree(os.path.dirname(path), directory)
    log.close()


def facts_of(state_dir: str) -> Facts:
    """Every event, but for the marks of lost ones."""
    log = EventLog.open(f"{state_dir}/{offline.LOG_NAME}")
    found: list[Recorded] = []
    try:
        log.scan(found.append)
    finally:
        log.close()
    return {fact.position: fact for fact in found if fact.type != "log.event_lost"}


# -- damage -----------------------------------------------------------------------------------------------------------


def flip(chance: random.Random, path: Path) -> str:
    content = bytearray(path.read_bytes())
    at = chance.randrange(len(content))
    bit = chance.randrange(8)
    content[at] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {at}"


def cut(chance: random.Random, path: Path) -> str:
    size = chance.randrange(path.stat().st_size)
    size -= size % PAGE if chance.random() < 0.5 else 0
    os.truncate(path, size)
    return f"cut to {size}"


def garbage(chance: random.Random, path: Path) -> str:
    content = bytearray(path.read_bytes())
    at = chance.randrange(len(content))
    length = min(chance.choice((1, 8, 100, 512, PAGE, 3 * PAGE)), len(content) - at)
    content[at : at + length] = chance.randbytes(length) if chance.random() < 0.5 else bytes(length)
    path.write_bytes(content)
    return f"{length} bytes at {at}"


def exchange_pages(chance: random.Random, path: Path) -> str:
    content = bytearray(path.read_bytes())
    pages = len(content) // PAGE
    if pages < 2:
        return flip(chance, path)
    one, other = (PAGE * number for number in chance.sample(range(pages), 2))
    content[one : one + PAGE] = content[other : other + PAGE]
    path.write_bytes(content)
    return f"page {other // PAGE} over {one // PAGE}"


def remove(chance: random.Random, path: Path) -> str:
    path.unlink()
    return "removed"


def lengthen(chance: random.Random, path: Path) -> str:
    with path.open("ab") as file:
        file.write(chance.randbytes(chance.choice((1, 24, PAGE + 24, 5 * PAGE))))
    return "made longer"


def put_aside(chance: random.Random, path: Path) -> str:
    """Something else in its place."""
    path.rename(f"{path}.aside")
    what = chance.choice(("a directory", "a link to nothing", "an empty file"))
    {"a directory": path.mkdir, "a link to nothing": lambda: path.symlink_to("/nothing"), "an empty file": path.touch}[
        what
    ]()
    return what


WAYS: tuple[Callable[[random.Random, Path], str], ...] = (
    flip,
    flip,
    cut,
    garbage,
    garbage,
    exchange_pages,
    remove,
    lengthen,
    put_aside,
)


def damage(chance: random.Random, state_dir: str) -> str:
    """Damage one file, or two; answer what was done."""
    return "; ".join(_damage(chance, state_dir) for _ in range(chance.choice((1, 1, 1, 2))))


def _damage(chance: random.Random, state_dir: str) -> str:
    files = [path for path in Path(state_dir).rglob("*") if path.is_file() and path.name != "ballast"]
    weights = [{"events.db": 60, "events.db-wal": 30, "events.head": 5}.get(path.name, 3) for path in files]
    path = chance.choices(files, weights)[0]
    way = chance.choice(WAYS)
    if path.stat().st_size == 0:
        way = remove
    return f"{path.relative_to(state_dir)}: {way.__name__}: {way(chance, path)}"


# -- what must be true -------------------------------------------------------------------------------------------------


def check_verify(pristine: Pristine, state_dir: str) -> bool:
    """What `store verify` finds sound is what was there before. Answers whether it found it sound."""
    try:
        report = offline.verify(state_dir)
    except SandkeepError as refused:
        assert_helpful(refused.message)
        return False
    for problem in report.problems:
        assert problem
    if report.ok:
        assert facts_of(state_dir) == pristine.facts
        assert report.last_position == max(pristine.facts)
    return report.ok


def check_start(pristine: Pristine, state_dir: str) -> bool:
    """A daemon that starts and has no problem has the state that there was; what it finds later is the rest."""
    try:
        log = EventLog.open(f"{state_dir}/{offline.LOG_NAME}")
    except SandkeepError as refused:
        assert_helpful(refused.message)
        return False
    try:
        state, problems = daemon.fold(log, state_dir)
        for problem in problems:
            assert_helpful(problem)
        if problems:
            return False
        assert log.head == max(pristine.facts)
        assert list(state_cache.records(state, log)) == pristine.state
        return True
    finally:
        log.close()


def assert_helpful(sentence: str) -> None:
    """It says what to do."""
    assert re.search(
        r"restore|repair|remove|move it|look at|free space|mend|use another|run |name the directory", sentence
    ), sentence


def check_repair(pristine: Pristine, state_dir: str) -> list[str]:
    """What is left is what was there, and each event that is not is told. Answers what was told."""
    path = Path(state_dir, offline.LOG_NAME)
    before = path.read_bytes() if path.is_file() else None
    try:
        report = repair(state_dir, yes=True)
    except SandkeepError as refused:
        assert_helpful(refused.message)
        assert (path.read_bytes() if path.is_file() else None) == before
        assert not os.path.exists(repairing(str(path)))
        return [refused.message]
    after = facts_of(state_dir)
    told = positions_told(report.problems)
    assert {at: fact for at, fact in after.items() if pristine.facts.get(at) != fact} == {}
    assert sorted(pristine.facts.keys() - after.keys() - told) == []
    assert len(after) == report.kept
    if not report.mended:
        offline.rebuild(state_dir)
    left = offline.verify(state_dir).problems
    assert [problem for problem in left if "belongs to no sandbox on record" not in problem] == []
    log = EventLog.open(str(path))
    try:
        assert daemon.fold(log, state_dir)[1] == []
        assert log.head >= max(pristine.facts)
    finally:
        log.close()
    assert repair(state_dir, yes=True).problems == []
    return report.problems


def positions_told(problems: list[str]) -> set[int]:
    """The positions of the events of which it is said that they are lost."""
    text = "\n".join(problems)
    told = {int(found) for found in re.findall(r"event at position (\d+) ", text)}
    for first, last in re.findall(r"events from position (\d+) to (\d+) are missing", text):
        told.update(range(int(first), int(last) + 1))
    return told


def try_once(pristine: Pristine, place: str, seed: int) -> None:
    """Damage a copy at random, and look at all of it."""
    try_with(pristine, place, f"seed {seed}", lambda copy: damage(random.Random(seed), copy))


def try_with(pristine: Pristine, place: str, what: str, do_harm: Callable[[str], object]) -> tuple[Any, ...]:
    """Damage copies, all in the same way, and look at one as each of those does who look. Answers what they found."""
    copies = [shutil.copytree(pristine.directory, f"{place}/{number}", symlinks=True) for number in range(3)]
    done = {do_harm(copy) for copy in copies}
    assert len(done) == 1, done
    try:
        found = (
            check_verify(pristine, copies[0]),
            check_start(pristine, copies[1]),
            check_repair(pristine, copies[2]),
        )
    except BaseException as error:
        error.add_note(f"{what}: {done.pop()}")
        raise
    for copy in copies:
        shutil.rmtree(copy)
    return found
