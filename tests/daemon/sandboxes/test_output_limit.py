"""Output within its bounds: what goes, what stays, and that nobody who reads takes a hole for what was written."""

import ctypes
import os
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.conftest import RunningDaemon
from tests.support.expect import until_async
from tests.support.inside import Inside, inside
from tests.support.streams import house_in

from sandkeep.errors import SandkeepError, SetupError
from sandkeep.events import Meta
from sandkeep.protocol.clock import now_us
from sandkeep.settings.daemon import RETAIN_OUTPUT
from sandkeep_store.views.processes import RECENT_UNNAMED
from sandkeepd.host import blocks
from sandkeepd.host.hostile_files import HostileRoot, HostileTree
from sandkeepd.keeper import journal, journal_trimming
from sandkeepd.sandboxes import output_limit
from sandkeepd.sandboxes.output_limit import OutputLimit
from sandkeepd.sandboxes.output_times import Mark, OutputTimes

MIB = 1024**2
LINE = b"0123456789abcde\n"


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "p").mkdir()
    (tmp_path / "exits").write_bytes(b"")
    return tmp_path


def write(out: Path, process_id: str, size: int, part: str = "stdout") -> Path:
    path = out / "p" / f"{process_id}.{part}"
    path.write_bytes((LINE * (size // len(LINE) + 1))[:size])
    return path


def tree(out: Path | str) -> HostileTree:
    return HostileRoot(str(out)).tree()


def occupied(out: Path) -> int:
    return sum(max(journal_trimming.FILE_BYTES, path.lstat().st_blocks * 512) for path in (out / "p").iterdir())


def test_within_its_bounds_nothing_goes(out: Path) -> None:
    path = write(out, "prc_1", MIB)
    assert journal_trimming.trim(tree(out), {"prc_1"}, 2 * MIB) == (0, 0, MIB)
    assert path.read_bytes() == LINE * (MIB // len(LINE))


def test_what_ended_first_goes_first_and_whole(out: Path) -> None:
    for number in range(8):
        for part in journal_trimming.PARTS:
            write(out, f"prc_{number}", MIB // 4, part)
    write(out, "hlp_1", 4 * MIB)
    assert journal_trimming.trim(tree(out), {"prc_1"}, 4 * MIB) == (4, 0, 3 * MIB)
    left = {path.name for path in (out / "p").iterdir()}
    assert left == {f"prc_{n}.{part}" for n in (1, 5, 6, 7) for part in journal_trimming.PARTS} | {"hlp_1.stdout"}


def test_a_great_many_small_ones_count_too(out: Path) -> None:
    for number in range(1000):
        write(out, f"prc_{number:04}", 0)
    assert journal_trimming.trim(tree(out), (), MIB).processes == 1000 - 192
    assert occupied(out) == 192 * journal_trimming.FILE_BYTES


def test_of_one_that_runs_the_beginning_goes(out: Path) -> None:
    path = write(out, "prc_1", 4 * MIB)
    before = path.read_bytes()
    dropped = journal_trimming.trim(tree(out), {"prc_1"}, 2 * MIB)
    assert dropped.processes == 0
    assert dropped.cut_bytes >= 2 * MIB
    assert (path.stat().st_size, occupied(out) <= 1.5 * MIB + journal_trimming.FILE_BYTES) == (4 * MIB, True)
    chunk = journal.read_journal(tree(out), "prc_1", "stdout", 0, 10 * MIB)
    assert chunk.offset > 2 * MIB
    assert chunk.data == before[chunk.offset :]
    assert "were dropped" in (chunk.note or "")
    with path.open("ab") as file:
        file.write(b"more")
    after = journal.read_journal(tree(out), "prc_1", "stdout", 4 * MIB, 10)
    assert (after.data, after.note) == (b"more", None)


def test_its_end_stays_whatever_is_asked_for(out: Path) -> None:
    for part in journal_trimming.STREAMS:
        write(out, "prc_1", MIB, part)
    journal_trimming.trim(tree(out), {"prc_1"}, 4096)
    for stream in journal_trimming.STREAMS:
        chunk = journal.read_journal(tree(out), "prc_1", stream, 0, MIB)
        assert len(chunk.data) >= journal_trimming.LEAST_KEPT_BYTES
        assert b"\0" not in chunk.data


def test_answers_that_nobody_will_read_go(out: Path) -> None:
    exits = out / "exits"
    exits.write_bytes(b"prc_0 0\n" * (4 * journal.MAX_BACKLOG_BYTES // 8) + b"prc_1 7\n")
    journal_trimming.trim(tree(out), (), MIB)
    assert exits.stat().st_blocks * 512 <= 2 * journal.MAX_BACKLOG_BYTES + 8192
    reader = journal.ExitsReader(tree(out))
    found: list[journal.Answer] = []
    more = True
    while more:
        answers, more = reader.read()
        found += answers
    reader.close()
    assert len(found) >= journal.MAX_BACKLOG_BYTES // 8 - 1
    assert found[-1] == ("prc_1", "7")


@pytest.mark.parametrize("how", ["link", "hard link", "fifo", "directory", "foreign"])
def test_a_name_that_leads_elsewhere_changes_nothing_there(out: Path, tmp_path: Path, how: str) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"x" * MIB)
    path = out / "p" / "prc_1.stdout"
    if how == "link":
        path.symlink_to(target)
    elif how == "hard link":
        path.hardlink_to(target)
    elif how == "fifo":
        os.mkfifo(path)
    elif how == "directory":
        path.mkdir()
        (path / "file").write_text("x")
    elif os.geteuid() == 0:
        path.write_bytes(target.read_bytes())
        os.chown(path, 12345, 12345)
    exits = out / "exits"
    exits.unlink()
    exits.symlink_to(target)
    write(out, "prc_2", MIB)
    journal_trimming.trim(tree(out), {"prc_1"}, 4096)
    if how == "foreign" and os.geteuid() == 0:
        assert path.stat().st_blocks * 512 >= MIB
    journal_trimming._cut(
        tree(out), os.geteuid(), journal_trimming._File("prc_1", "stdout", MIB), MIB
    )  # another when listed
    journal_trimming.trim(tree(out), (), 4096)
    journal_trimming.drop(tree(out), ["prc_1", "prc_2", "prc_3"])
    assert target.read_bytes() == b"x" * MIB
    assert target.stat().st_blocks * 512 >= MIB
    assert (path / "file").exists() == (how == "directory")


def test_the_directory_itself_may_be_a_link(out: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "prc_1.stdout").write_bytes(b"x" * MIB)
    (out / "p").rmdir()
    (out / "p").symlink_to(tmp_path / "other")
    with pytest.raises(OSError):
        journal_trimming.trim(tree(out), (), 4096)
    with pytest.raises(OSError):
        journal_trimming.drop(tree(out), ["prc_1"])
    assert (tmp_path / "other" / "prc_1.stdout").stat().st_size == MIB


def test_what_is_dropped_while_it_is_read_is_not_taken_for_zeros(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(out, "prc_1", MIB)
    whole, pread, cuts = path.read_bytes(), os.pread, iter((512 * 1024,))

    def pread_late(fd: int, size: int, offset: int) -> bytes:
        for upto in cuts:
            descriptor = os.open(path, os.O_WRONLY)
            journal_trimming._punch(descriptor, upto)
            os.close(descriptor)
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", pread_late)
    chunk = journal.read_journal(tree(out), "prc_1", "stdout", 0, MIB)
    assert (chunk.offset, chunk.data == whole[512 * 1024 :]) == (512 * 1024, True)


def test_a_file_system_without_holes_is_told(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(out, "prc_1", MIB)

    class Libc:
        def fallocate64(self, *_: object) -> int:
            ctypes.set_errno(95)
            return -1

    monkeypatch.setattr(blocks, "_libc", Libc())
    with pytest.raises(OSError, match="not supported"):
        journal_trimming.trim(tree(out), {"prc_1"}, 4096)


def test_the_setting() -> None:
    assert RETAIN_OUTPUT({}) == 1024**3
    assert RETAIN_OUTPUT({RETAIN_OUTPUT.name: "5M"}) == 5 * MIB
    assert RETAIN_OUTPUT({RETAIN_OUTPUT.name: "unlimited"}) is None
    with pytest.raises(SetupError):
        RETAIN_OUTPUT({RETAIN_OUTPUT.name: "5k"})


# -- a daemon ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "source").mkdir()
    return str(tmp_path / "source")


async def gone(daemon: Inside, method: str, **params: Any) -> str:
    with pytest.raises(SandkeepError) as refused:
        await daemon.call(method, **params)
    return refused.value.code


async def test_of_processes_that_ended(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RETAIN_OUTPUT.name, "1M")
    async with inside(str(tmp_path / "state")) as daemon:
        image = await daemon.image(source)
        box = (await daemon.call("sandbox.create", image_id=image)).sandbox_id
        command = {"sandbox_id": box, "command": "yes | head -c 600000; exit 3", "command_id": "first"}
        first = await daemon.call("sandbox.exec", **command)
        empty = await daemon.call("sandbox.exec", sandbox_id=box, command="true")
        last = await daemon.call("sandbox.exec", sandbox_id=box, command="yes | head -c 600000")
        times = OutputTimes(daemon.core.log.directory)
        for process_id in (first.process_id, last.process_id):
            times.append(box, process_id, [Mark(1, 600_000, 0)])
        await OutputLimit(daemon.core).trim()
        assert await gone(daemon, "process.read", sandbox_id=box, name=first.process_id) == "compacted"
        # What took a while has marks of the daemon's besides.
        marked = [len(times.load(box, process_id)) > 0 for process_id in (first.process_id, last.process_id)]
        assert marked == [False, True]
        again = await daemon.call("sandbox.exec", **command)
        assert (again.exit_code, again.stdout, again.stdout_bytes, again.stdout_truncated) == (3, b"", 600000, True)
        kept = await daemon.call("process.read", sandbox_id=box, name=last.process_id, max_bytes=10)
        assert (kept.stdout, kept.note) == (b"y\ny\ny\ny\ny\n", None)
        assert (await daemon.call("process.read", sandbox_id=box, name=empty.process_id)).stdout == b""
        await daemon.call("sandbox.terminate", sandbox_id=box)
        assert await gone(daemon, "process.read", sandbox_id=box, name=first.process_id) == "compacted"
        assert await gone(daemon, "process.open_output", sandbox_id=box, name=first.process_id) == "compacted"


async def test_of_one_that_runs_and_who_follows_it(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RETAIN_OUTPUT.name, "1M")
    async with inside(str(tmp_path / "state")) as daemon:
        image = await daemon.image(source)
        box = (await daemon.call("sandbox.create", image_id=image)).sandbox_id
        script = "seq 1 300000; read line; echo $line"
        await daemon.call("process.launch", sandbox_id=box, name="job", command=["sh", "-c", script], stdin=True)
        whole = b"".join(b"%d\n" % number for number in range(1, 300001))

        async def read(offset: int, **more: Any) -> Any:
            query = {"sandbox_id": box, "name": "job", "stdout_offset": offset, **more}
            return await daemon.call("process.read", **query)

        while (await read(len(whole) - 1, wait_s=10)).stdout != b"\n":
            pass
        follower = await read(0, max_bytes=1000)
        assert follower.stdout == whole[:1000]
        await OutputLimit(daemon.core).trim()
        at = follower.next_stdout_offset
        told, seen, begin = [], b"", None
        while at < len(whole):
            piece = await read(at, max_bytes=100_000)
            told += [piece.note] if piece.note else []
            begin = begin or piece.stdout_offset
            seen += piece.stdout
            at = piece.next_stdout_offset
        assert len(told) == 1
        assert begin is not None
        assert begin > 1000
        assert seen == whole[begin:]
        await daemon.call("process.write_stdin", sandbox_id=box, name="job", data=b"end\n")
        await daemon.call("process.wait", sandbox_id=box, name="job")
        assert (await read(len(whole))).stdout == b"end\n"
        await daemon.call("sandbox.terminate", sandbox_id=box)


async def test_it_happens_by_itself(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RETAIN_OUTPUT.name, "1M")
    monkeypatch.setattr(output_limit, "EVERY_S", 0)
    state_dir = str(tmp_path / "state")
    async with inside(state_dir) as daemon:
        image = await daemon.image(source)
        box = (await daemon.call("sandbox.create", image_id=image)).sandbox_id
        times = OutputTimes(state_dir)
        times.append("sbx_forgotten", "prc_1", [Mark(1, 1, 1)])
        times.append(box, "prc_forgotten", [Mark(1, 1, 1)])
        daemon.core.nursery.start_soon(OutputLimit(daemon.core).run)
        await until_async(lambda: times.sandboxes() == [box] and not times.load(box, "prc_forgotten"))
        journals = f"{state_dir}/sandboxes/{box}/out/p"
        first = await daemon.call("sandbox.exec", sandbox_id=box, command="yes | head -c 600000")
        await daemon.call("sandbox.exec", sandbox_id=box, command="yes | head -c 600000")
        await until_async(lambda: not os.path.exists(f"{journals}/{first.process_id}.stdout"))
        await daemon.call("sandbox.terminate", sandbox_id=box)


async def test_it_goes_with_the_events(tmp_path: Path, source: str) -> None:
    state_dir = str(tmp_path / "state")
    async with inside(state_dir) as daemon:
        image = await daemon.image(source)
        box = (await daemon.call("sandbox.create", image_id=image)).sandbox_id
        ran = [
            (await daemon.call("sandbox.exec", sandbox_id=box, command="echo x")).process_id
            for _ in range(RECENT_UNNAMED + 5)
        ]
        other = (await daemon.call("sandbox.create", image_id=image)).sandbox_id
        for _ in range(RECENT_UNNAMED + 5):
            await daemon.call("sandbox.exec", sandbox_id=other, command="echo x")
        times = OutputTimes(state_dir)
        for process_id in ran:
            times.append(box, process_id, [Mark(1, 2, 0)])
        replaced = f"{state_dir}/sandboxes/{other}/out/p"
        os.rename(replaced, f"{replaced}.away")
        os.symlink(source, replaced)
        report = await daemon.retention.archive(now_us() + 3600 * 10**6, Meta())
        assert report.events >= 30
        left = {name.partition(".")[0] for name in os.listdir(f"{state_dir}/sandboxes/{box}/out/p")}
        assert left == set(ran[5:]) == set(os.listdir(f"{state_dir}/output-times/{box}"))
        assert await gone(daemon, "process.read", sandbox_id=box, name=ran[0]) == "not_found"
        assert (await daemon.call("process.read", sandbox_id=box, name=ran[5])).stdout == b"x\n"
        for name in (box, other):
            await daemon.call("sandbox.terminate", sandbox_id=name)


@pytest.mark.needs("bwrap")
async def test_who_follows_by_the_stream_server_goes_on(places: str) -> None:
    with house_in(places) as house:
        house.launch("seq 1 200000; read x; seq 200001 400000; exit 3", "job", stdin=True)
        whole = b"".join(b"%d\n" % number for number in range(1, 400001))
        seen: dict[int, bytes] = {}
        async with house.streams().logs(house.sandbox_id, "job") as log:
            async for piece in log:
                if not seen:
                    await trio.to_thread.run_sync(let_it_overflow, house)
                seen[piece.offset] = piece.data
        assert log.exit is not None
        assert log.exit.exit_code == 3
        (dropped,) = log.notes
        assert dropped.first in seen
        for offset, data in seen.items():
            assert data == whole[offset : offset + len(data)]
        assert log.stdout_offset == len(whole)
        assert sum(map(len, seen.values())) < len(whole)


def let_it_overflow(house: Any) -> None:
    """Have the process write more, and all but its end dropped."""
    with house.daemon.connect() as client:
        process_id = client.process.get(house.sandbox_id, "job").process_id
        client.process.write_stdin(house.sandbox_id, "job", b"go\n")
        client.process.wait(house.sandbox_id, "job")
    journal_trimming.trim(tree(f"{house.daemon.state_dir}/sandboxes/{house.sandbox_id}/out"), {process_id}, 65536)


@pytest.mark.needs("bwrap")
def test_the_command_shows_no_zeros(running_daemon: RunningDaemon, tmp_path: Path) -> None:
    daemon = running_daemon
    tmp_path.chmod(0o755)
    with daemon.connect() as client:
        image = client.image.create(str(tmp_path)).image_id
        box = client.sandbox.create(image).sandbox_id
        client.process.launch(box, name="job", command=["sh", "-c", "seq 1 700000"])
        client.process.wait(box, "job")
        process = client.process.get(box, "job")
        written = tree(f"{daemon.state_dir}/sandboxes/{box}/out")
        journal_trimming.trim(written, {process.process_id}, 2 * MIB)
        whole = b"".join(b"%d\n" % number for number in range(1, 700001))
        first = client.process.read(box, "job", max_bytes=10).stdout_offset
        assert first > 2 * MIB
        said = daemon.cli("logs", box, "job")
        assert (said.returncode, said.stdout == whole[first:]) == (0, True)
        assert b"were dropped" in said.stderr
        tail = daemon.cli("logs", box, "job", "--tail", "1000000")
        assert whole[first:].endswith(tail.stdout)
        assert len(tail.stdout) > MIB / 2
        journal_trimming.drop(written, [process.process_id])
        refused = daemon.cli("logs", box, "job")
        assert refused.stdout == b""
        assert b"is not kept any more" in refused.stderr
