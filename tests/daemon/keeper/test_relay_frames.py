"""What a relay sends that hostile code has replaced: frames, and what they do to the mirror."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from tests.support.expect import until_async
from tests.support.patience import patient

from sandkeep.errors import ProviderError, SandkeepError
from sandkeep.system.descriptors import closing_fd
from sandkeepd.host import free_space
from sandkeepd.host.hostile_files import HostileRoot
from sandkeepd.keeper import journal, relay, relay_frames
from sandkeepd.keeper.relay import Relay
from sandkeepd.keeper.relay_frames import Frame, FrameReader

HELLO = b"hello 1 0\nready\n"

NAMES = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_-]{0,63}\.(stdout|stderr|data)\Z")
NUMBERS = st.integers(0, 1 << 42)
FRAMES = st.one_of(
    st.builds(lambda number: Frame("hello", number=number), NUMBERS),
    st.builds(lambda number: Frame("took", number=number), NUMBERS),
    st.builds(
        lambda name, number, data: Frame("data", name, number, data=data), NAMES, NUMBERS, st.binary(max_size=99)
    ),
    st.builds(lambda name, new: Frame("name", name, new=new), NAMES, NAMES),
    st.builds(lambda name: Frame("gone", name), NAMES),
    st.builds(lambda name, number: Frame("in", name.partition(".")[0], number), NAMES, NUMBERS),
    st.sampled_from([Frame("ready"), Frame("cut"), Frame("synced")]),
)


def encoded(frame: Frame) -> bytes:
    words = {
        "hello": f"1 {frame.number}", "took": f"{frame.number}", "gone": frame.name,
        "name": f"{frame.name} {frame.new}",
        "data": f"{frame.name} {frame.number} {len(frame.data):05}", "in": f"{frame.name} {frame.number}",
    }  # fmt: skip
    return f"{frame.verb} {words.get(frame.verb, '')}".rstrip().encode() + b"\n" + frame.data


@given(st.lists(FRAMES), st.integers(1, 50))
def test_frames_in_pieces(sent: list[Frame], step: int) -> None:
    data = b"".join(map(encoded, sent))
    reader = FrameReader()
    got = [frame for at in range(0, len(data), step) for frame in reader.feed(data[at : at + step])]
    assert got == sent


@given(st.lists(st.one_of(st.binary(), FRAMES.map(encoded)), max_size=8))
def test_any_bytes_are_frames_or_refused(pieces: list[bytes]) -> None:
    reader = FrameReader()
    with suppress(ProviderError):
        for piece in pieces:
            for frame in reader.feed(piece):
                assert relay_frames.is_journal(frame.name) or relay_frames.is_input(frame.name) or not frame.name
                assert relay_frames.is_journal(frame.new) or not frame.new
                assert 0 <= frame.number <= 1 << 53
                assert len(frame.data) <= relay_frames.MAX_DATA_BYTES
            assert len(reader._buffer) <= relay_frames.MAX_DATA_BYTES + 256


@pytest.mark.parametrize(
    "line",
    [
        b"data ../x.stdout 0 1\nx", b"data x.stdout -1 1\nx", b"data x.stdout 0 65537\n", b"data x.stdout 0 -1\n",
        b"data x.stdout 9999999999999 1\nx", b"data .stdout 0 0\n", b"data x.told 0 0\n", b"data x.stdout 0 1 \nx",
        b"data %s.stdout 0 0\n" % (b"x" * 65), b"name x.stdout ../y.stdout\n", b"name x.stdout exits\n",
        b"gone exits\n",
        b"took 1\n", b"took 99999999999999999\n", b"hello 1 0\n", b"in a 1\n", b"ready\n", b"x" * 256, b"\n", b"\0\n",
        b"hello 2 0\n", b"cut now\n", b"DATA x.stdout 0 0\n", "data x.stdout \u0661 0\n".encode(),
    ],
)  # fmt: skip
async def test_what_is_no_frame(line: bytes, tmp_path: Path) -> None:
    async with hostile(tmp_path, fails=True) as (_, pod):
        await pod.send_all(HELLO + line)
    assert sorted(os.listdir(tmp_path)) == ["mirror"]
    assert os.listdir(tmp_path / "mirror/out/p") == []
    assert (tmp_path / "mirror/out/exits").read_bytes() == b""


async def test_nothing_comes_before_the_greeting(tmp_path: Path) -> None:
    async with hostile(tmp_path, fails=True) as (_, pod):
        await pod.send_all(b"data x.stdout 0 00001\nx")
    assert os.listdir(tmp_path / "mirror/out/p") == []


async def test_too_many_files_of_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "_MAX_INPUTS", 10)
    async with hostile(tmp_path, fails=True) as (_, pod):
        await pod.send_all(b"hello 1 0\n" + b"".join(b"in a%d 1\n" % number for number in range(11)))


async def test_output_without_end(tmp_path: Path) -> None:
    """The mirror keeps the end of it, and is bounded at every moment."""
    most, piece = 4 << 20, os.urandom(65_536)
    async with hostile(tmp_path, most_bytes=most) as (made, pod):
        await pod.send_all(HELLO)
        for number in range(400):
            await pod.send_all(b"data a.stdout %d 65536\n" % (number * 65_536) + piece)
            assert occupied(tmp_path / "mirror/out") <= most * 5 // 4
        await until_async(lambda: made._mirror.sizes.get("a.stdout") == 400 * 65_536)
    out = HostileRoot(str(tmp_path / "mirror")).tree("out")
    found = journal.read_journal(out, "a", "stdout", 0, 1 << 30)
    assert found.note is not None
    assert "were dropped" in found.note
    assert found.size == 400 * 65_536
    assert found.data.endswith(piece)


async def test_answers_without_end(tmp_path: Path) -> None:
    most = 4 << 20
    async with hostile(tmp_path, most_bytes=most) as (made, pod):
        await pod.send_all(HELLO)
        for number in range(500):
            await pod.send_all(b"data exits %d 65536\n" % (number * 65_536) + b"x 1\n" * 16_384)
        await until_async(lambda: made._mirror.sizes["exits"] == 500 * 65_536)
    assert occupied(tmp_path / "mirror/out") <= 3 * journal.MAX_BACKLOG_BYTES


async def test_names_without_end(tmp_path: Path) -> None:
    """Journals of processes that have ended go, oldest first; where none has, no more are taken."""
    async with hostile(tmp_path, most_bytes=1 << 20) as (made, pod):
        await pod.send_all(HELLO)
        for number in range(600):
            await pod.send_all(b"data a%03d.stdout 0 1\nxdata exits %d 7\na%03d 0\n" % (number, number * 7, number))
        await until_async(lambda: made._mirror.sizes["exits"] == 600 * 7)
        there = set(os.listdir(tmp_path / "mirror/out/p"))
        assert {"a000.stdout", "a599.stdout"} & there == {"a599.stdout"}
        for number in range(600):
            await pod.send_all(b"data b%03d.stdout 0 1\nx" % number)
        await pod.send_all(b"cut\n")
        await until_async(lambda: made._mirror.sizes["exits"] == 0)
        assert len(os.listdir(tmp_path / "mirror/out/p")) <= (1 << 20) // 4096 * 5 // 4


async def test_what_is_far_away_takes_no_room(tmp_path: Path) -> None:
    async with hostile(tmp_path) as (made, pod):
        await pod.send_all(HELLO + b"data a.stdout 0 4\nxxxxdata a.stdout 1000000000000 4\nlast")
        await until_async(lambda: made._mirror.sizes.get("a.stdout") == 10**12 + 4)
    assert occupied(tmp_path / "mirror/out") < 1 << 20
    out = HostileRoot(str(tmp_path / "mirror")).tree("out")
    assert journal.read_journal(out, "a", "stdout", 10**12, 100).data == b"last"
    found = journal.read_journal(out, "a", "stdout", 0, 10_000)
    assert (found.offset, found.data.lstrip(b"\0")) == (10**12 // 4096 * 4096, b"last")


async def test_bytes_that_were_sent_before(tmp_path: Path) -> None:
    async with hostile(tmp_path) as (made, pod):
        await pod.send_all(HELLO + b"data a.stdout 0 4\nabcddata a.stdout 2 4\nXXef")
        await until_async(lambda: made._mirror.sizes.get("a.stdout") == 6)
    assert (tmp_path / "mirror/out/p/a.stdout").read_bytes() == b"abcdef"


async def test_what_was_dropped_stays_away(tmp_path: Path) -> None:
    """Also what was under way then, until the pod says that it has gone there."""
    async with hostile(tmp_path) as (made, pod):
        await pod.send_all(HELLO + b"data a.stdout 0 1\nx")
        await until_async(lambda: "a.stdout" in made._mirror.sizes)
        (tmp_path / "mirror/out/p/a.stdout").unlink()
        await made.trimmed()
        await pod.send_all(b"data a.stdout 1 1\nydata b.stdout 0 1\nz")
        await until_async(lambda: "b.stdout" in made._mirror.sizes)
        assert os.listdir(tmp_path / "mirror/out/p") == ["b.stdout"]
        sent = b""
        while b"drop" not in sent:
            sent += await pod.receive_some()
        assert b"\ndrop a.stdout\n" in sent
        await pod.send_all(b"gone a.stdout\ndata a.stdout 0 2\nxy")
        await until_async(lambda: made._mirror.sizes.get("a.stdout") == 2)


async def test_requests_that_were_read_as_the_connection_broke(tmp_path: Path) -> None:
    """All come over the next one, each with its number, behind its input."""
    (tmp_path / "mirror").mkdir()
    made = Relay(HostileRoot(str(tmp_path / "mirror")).tree(), most_bytes=1 << 20)
    near, far = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run, near)
        await far.send_all(HELLO)
        await until_async(lambda: not made._is_new)
        far.receive_stream.close()
        for name in "ab":
            (tmp_path / f"mirror/in/{name}.stdin").write_bytes(b"z" * 600_000)
        with closing_fd(os.open(tmp_path / "mirror/in/.control", os.O_WRONLY)) as fifo:
            os.write(fifo, b"more a stdin\nmore b stdin\nmore c stdin\n")
    near, far = trio.testing.memory_stream_pair()
    sent = b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run, near)
        await far.send_all(HELLO)
        while b"more c" not in sent:
            sent += await far.receive_some()
        nursery.cancel_scope.cancel()
    assert sent.count(b"z") == 2 * 600_000
    assert sent[sent.index(b"ask ") :] == b"ask 1 13\nmore a stdin\nask 2 13\nmore b stdin\nask 3 13\nmore c stdin\n"
    made.close()


async def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mirror/out/p").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "mirror/out/p/a.stdout").symlink_to(tmp_path / "secret")
    async with hostile(tmp_path, fails=True) as (_, pod):
        await pod.send_all(HELLO + b"data a.stdout 0 4\nmine")
    assert (tmp_path / "secret").read_text() == "secret"


async def test_requests_that_are_never_confirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Further ones wait in the FIFO, so that nothing grows."""
    monkeypatch.setattr(relay, "MAX_UNCONFIRMED_BYTES", 100_000)
    async with hostile(tmp_path) as (made, pod):
        await pod.send_all(HELLO)
        fifo = os.open(tmp_path / "mirror/in/.control", os.O_RDWR | os.O_NONBLOCK)
        wrote = 0

        def is_full() -> bool:
            nonlocal wrote
            with suppress(BlockingIOError):
                while wrote < 400_000:
                    wrote += os.write(fifo, b"x" * 4000 + b"\n")
            return made._unconfirmed_bytes > 100_000

        await until_async(is_full)
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert is_full()
        await trio.testing.wait_all_tasks_blocked(0.02)
        with pytest.raises(BlockingIOError):
            os.write(fifo, b"x" * 4000 + b"\n")
        os.close(fifo)
        assert wrote < 400_000
        assert made._unconfirmed_bytes <= 100_000 + 65_536


async def test_output_for_which_the_host_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays in the pod."""
    monkeypatch.setattr(free_space, "room", lambda _: 1 << 20)
    async with hostile(tmp_path, fails=True) as (made, pod):
        await pod.send_all(HELLO + b"data a.stdout 0 4\nmine")
    assert os.listdir(tmp_path / "mirror/out/p") == []
    monkeypatch.undo()
    async with hostile(tmp_path) as (made, pod):
        await pod.send_all(HELLO + b"data a.stdout 0 4\nmine")
        await until_async(lambda: made._mirror.sizes.get("a.stdout") == 4)


async def test_a_pod_that_reads_nothing_is_taken_for_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "STALL_S", 0.2)
    (tmp_path / "mirror").mkdir()
    made = Relay(HostileRoot(str(tmp_path / "mirror")).tree(), most_bytes=16 << 20)
    stalled = Stalled()
    with trio.fail_after(patient(60)):
        await made.run(stalled)
        assert stalled.sent.is_set()
    made.close()


async def test_trimming_waits_for_no_pod_that_reads_nothing(tmp_path: Path) -> None:
    (tmp_path / "mirror").mkdir()
    made = Relay(HostileRoot(str(tmp_path / "mirror")).tree(), most_bytes=16 << 20)
    stalled = Stalled()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run, stalled)
        with trio.fail_after(patient(60)):
            await stalled.sent.wait()
            assert made._connection is not None
            made._connection.ready.set()
            await made.trimmed()
        nursery.cancel_scope.cancel()
    made.close()


class Stalled(trio.abc.Stream):
    """A connection whose other end takes nothing, and sends nothing."""

    def __init__(self) -> None:
        self.sent = trio.Event()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.set()
        await trio.sleep_forever()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.sleep_forever()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.sleep_forever()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def occupied(directory: Path) -> int:
    files = [place for place in directory.rglob("*") if place.is_file()]
    return sum(max(4096, place.stat().st_blocks * 512) for place in files)


@asynccontextmanager
async def hostile(
    tmp_path: Path, *, most_bytes: int = 16 << 20, fails: bool = False
) -> AsyncIterator[tuple[Relay, trio.abc.Stream]]:
    """A relay, and the other end of its connection. With `fails` the block ends with its error, and only then."""
    (tmp_path / "mirror").mkdir(exist_ok=True)
    made = Relay(HostileRoot(str(tmp_path / "mirror")).tree(), most_bytes=most_bytes)
    near, far = trio.testing.memory_stream_pair()
    assert isinstance(near.send_stream, trio.testing.MemorySendStream)
    failures: list[SandkeepError] = []

    async def serve(done: Callable[[], None]) -> None:
        try:
            await made.run(near)
        except SandkeepError as error:
            failures.append(error)
        done()

    async with trio.open_nursery() as nursery:
        ended = trio.Event()
        nursery.start_soon(serve, ended.set)
        yield made, far
        if fails:
            with trio.fail_after(patient(60)):
                await ended.wait()
        nursery.cancel_scope.cancel()
    made.close()
    assert len(failures) == fails
