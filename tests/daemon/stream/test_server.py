"""The stream server and its client, on a real daemon: logs, events, files and processes, over both kinds of socket."""

import hashlib
import io
import os
import socket
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from tests.support.expect import until
from tests.support.streams import WRITER, House, block, everything, house_in, message, websocket

from sandkeep.errors import SandkeepError
from sandkeep.protocol import frames
from sandkeep.stream import StreamClient
from sandkeepd.contract.processes import Chunk
from sandkeepd.stream.logs import PIECE_BYTES, PIECES_IN_A_ROW, JournalReader

pytestmark = pytest.mark.needs("bwrap", "root")

both = pytest.mark.parametrize("way", ["unix", "tls"])


@pytest.fixture(scope="module")
def house(places: str) -> Iterator[House]:
    with house_in(places) as house:
        yield house


async def read(log: Any) -> tuple[bytes, bytes]:
    out, err = bytearray(), bytearray()
    async for piece in log:
        held = err if piece.stream == frames.STDERR else out
        assert piece.offset == log_start(log, piece, held)
        held += piece.data
    return bytes(out), bytes(err)


def log_start(log: Any, piece: Any, held: bytearray) -> int:
    """Where the next piece of a stream must begin."""
    reached = log.stderr_offset if piece.stream == frames.STDERR else log.stdout_offset
    return reached - len(piece.data)


# -- logs -------------------------------------------------------------------------------------------------------------


@both
async def test_a_log_is_all_that_was_written_and_how_it_ended(house: House, way: str) -> None:
    name = f"log-{way}"
    house.run("echo out; echo err >&2; exit 3", name)
    async with house.streams(way).logs(house.sandbox_id, name) as log:
        assert await read(log) == (b"out\n", b"err\n")
    assert log.exit is not None
    assert (log.exit.status, log.exit.exit_code, log.exit.stdout_bytes, log.exit.stderr_bytes) == ("exited", 3, 4, 4)
    assert not log.notes


async def test_a_log_is_followed_while_it_grows(house: House) -> None:
    house.launch("echo one; read x; echo two", "grows", stdin=True)
    with house.daemon.connect() as client:
        async with house.streams().logs(house.sandbox_id, "grows") as log:
            assert (await log.__anext__()).data == b"one\n"
            client.process.write_stdin(house.sandbox_id, "grows", b"go\n")
            assert (await log.__anext__()) == (frames.STDOUT, 4, b"two\n")
            with pytest.raises(StopAsyncIteration):
                await log.__anext__()
    assert log.caught_up
    assert log.exit is not None


async def test_an_end_at_any_moment_is_not_missed(house: House) -> None:
    async def follow(name: str) -> None:
        async with house.streams().logs(house.sandbox_id, name) as log:
            assert await read(log) == (b"a\nb\n", b"")
        assert log.exit is not None

    for turn in range(3):
        async with trio.open_nursery() as nursery:
            for number in range(10):
                name = f"quick-{turn}-{number}"
                house.launch(f"echo a; sleep 0.0{number}; echo b", name)
                for _ in range(4):
                    nursery.start_soon(follow, name)


async def test_without_follow_it_ends_where_the_log_does(house: House) -> None:
    house.launch("echo one; read x", "ends", stdin=True)
    async with house.streams().logs(house.sandbox_id, "ends") as log:
        await log.__anext__()
    async with house.streams().logs(house.sandbox_id, "ends", follow=False) as log:
        assert await read(log) == (b"one\n", b"")
    assert log.exit is None


async def test_without_follow_it_ends_although_more_is_written_than_it_reads() -> None:
    outputs, sent = SimpleNamespace(written=5 * PIECE_BYTES), list[int]()

    def read_journal(process: Any, stream: str, offset: int, max_bytes: int) -> Chunk:
        outputs.written += 2 * max_bytes
        return Chunk(offset=offset, data=bytes(max_bytes), size=outputs.written)

    async def send_bytes(frame: bytes) -> None:
        sent.append(len(frame))
        assert len(sent) <= 2 * PIECES_IN_A_ROW  # of both streams

    outputs.read_journal = read_journal
    wait = trio.lowlevel.checkpoint
    session: Any = SimpleNamespace(room=wait, send_bytes=send_bytes, send=lambda _: wait())
    process: Any = SimpleNamespace(ended=False, started_us=1)
    await JournalReader(SimpleNamespace(outputs=outputs), process, 0, 0).send(session, follow=False)  # type: ignore[arg-type]
    assert len(sent) == 2 * PIECES_IN_A_ROW


async def test_it_has_times_if_they_are_asked_for(house: House) -> None:
    """A piece with too many of them comes in parts."""
    with house.daemon.connect() as client:
        script = "head -c 3000 /dev/zero; read x"
        process_id = client.process.launch(house.sandbox_id, script, name="timed", stdin=True).process_id
        marks = Path(house.daemon.state_dir, "output-times", house.sandbox_id, process_id)
        until(lambda: marks.exists() and marks.stat().st_size)  # what it notes by itself
        client.process.write_stdin(house.sandbox_id, "timed", eof=True)
        client.process.wait(house.sandbox_id, "timed")
    async with house.streams().logs(house.sandbox_id, "timed") as log:
        assert len((await log.__anext__()).data) == 3000
        assert not log.times
    marks.write_bytes(b"".join(struct.pack("<QQQ", 1 + number, 1 + number, 0) for number in range(3000)))
    pieces = []
    async with house.streams().logs(house.sandbox_id, "timed", times=True) as log:
        async for piece in log:
            pieces.append((piece.offset, len(piece.data)))
            assert [time.offset for time in log.times] == list(range(piece.offset + 1, log.stdout_offset + 1))
    assert pieces == [(0, 2000), (2000, 1000)]
    assert log.times[-1].at == "1970-01-01T00:00:00.003000Z"


async def test_it_begins_at_offsets(house: House) -> None:
    house.run("printf 0123456789; printf abcdef >&2", "offsets")
    async with house.streams().logs(house.sandbox_id, "offsets", 4, 5) as log:
        assert await read(log) == (b"456789", b"f")
    async with house.streams().logs(house.sandbox_id, "offsets", 10, 6) as log:
        assert await read(log) == (b"", b"")


async def test_cut_anywhere_and_resumed_it_is_exactly_the_missing_bytes(house: House) -> None:
    house.run(WRITER % 3, "cut")
    whole = b"".join(map(block, range(3)))
    got, cuts = bytearray(), 0
    while len(got) < len(whole):
        target = frames.target("logs", house.sandbox_id, "cut", stdout=len(got), follow=True)
        async with websocket(house.plain(), target) as connection:
            for _ in range(3):
                frame = await message(connection)
                if isinstance(frame, bytes):
                    piece = frames.parse_output(frame)
                    assert piece.offset == len(got)
                    got += piece.data
            connection.wire.cut()
        cuts += 1
    assert bytes(got) == whole
    assert cuts > 3


async def test_a_journal_that_was_cut_from_inside_is_told_of(house: House) -> None:
    house.run("echo some words", "shrunk")
    async with house.streams().logs(house.sandbox_id, "shrunk", 100) as log:
        assert await read(log) == (b"", b"")
    assert [note.stream for note in log.notes] == ["stdout"]


async def test_a_client_goes_on_when_the_daemon_was_killed(places: str) -> None:
    with house_in(places) as house:
        house.launch(f"{WRITER % 4}; read x; {WRITER % 2}", "survivor", stdin=True)
        digest, size = hashlib.sha256(), 0
        async with house.streams().logs(house.sandbox_id, "survivor") as log:
            async for piece in log:
                digest.update(piece.data)
                size += len(piece.data)
                if size >= 2 << 20 and house.daemon.process is not None and not log.caught_up and size < 3 << 20:
                    house.daemon.kill()
                    house.daemon.start()
                if size == 4 << 20:
                    house.daemon.stop()
                    house.daemon.start()
                    with house.daemon.connect() as client:
                        client.process.write_stdin(house.sandbox_id, "survivor", b"go\n")
        assert digest.digest() == hashlib.sha256(b"".join(map(block, [0, 1, 2, 3, 0, 1]))).digest()
        assert log.exit is not None
        assert log.exit.exit_code == 0


async def test_when_the_daemon_stops_clients_are_told_that_it_goes_away(places: str) -> None:
    with house_in(places) as house:
        async with websocket(house.plain(), frames.target("events")) as connection:
            await message(connection)
            await trio.to_thread.run_sync(house.daemon.stop)
            _, code = await everything(connection)
        assert code == 1001
        house.daemon.start()


# -- events -----------------------------------------------------------------------------------------------------------


@both
async def test_events_are_those_of_the_log_from_the_beginning(house: House, way: str) -> None:
    with house.daemon.connect() as client:
        known = list(client.event.list().events)
    async with house.streams(way).events() as events:
        assert [await events.__anext__() for _ in known] == known
        assert events.token is not None


async def test_events_go_on_after_a_token_and_as_they_come(house: House) -> None:
    house.run("true", "before")
    async with house.streams().events("now", type="process") as events:
        house.run("true", "first")
        seen = [await events.__anext__() for _ in range(3)]
        assert [event.type for event in seen] == ["process.launch_requested", "process.started", "process.exited"]
        log_id = (events.token or "").rpartition(":")[0]
    house.run("true", "second")
    token = f"{log_id}:{seen[0].position}"
    async with house.streams().events(token, type="process") as events:
        assert await events.__anext__() == seen[1]
    async with house.streams().events(token, sandbox_id=house.sandbox_id, type="process.exited") as events:
        assert await events.__anext__() == seen[2]
        assert (await events.__anext__()).stream != seen[2].stream


async def test_being_caught_up_is_said_each_time_once(house: House) -> None:
    async with websocket(house.plain(), frames.target("events", after="now", type="process")) as connection:
        assert (await message(connection))["kind"] == "caught_up"
        house.launch("true", "spoken")
        kinds = [(await message(connection))["kind"]]
        while kinds[-1] == "events":
            kinds.append((await message(connection))["kind"])
        assert (kinds[0], kinds[-1]) == ("events", "caught_up")


@pytest.mark.parametrize(("after", "status", "code"), [("nonsense", 400, "invalid"), ("log_other:1", 409, "wrong_log")])
async def test_a_token_that_is_of_no_use_is_refused(house: House, after: str, status: int, code: str) -> None:
    async with websocket(house.plain(), frames.target("events", after=after)) as connection:
        assert connection.rejection is not None
        assert connection.rejection.status_code == status
    with pytest.raises(SandkeepError) as caught:
        async with house.streams().events(after):
            pass
    assert caught.value.code == code


# -- files ------------------------------------------------------------------------------------------------------------


@both
async def test_a_file_goes_in_and_comes_out_as_it_was(house: House, way: str, tmp_path: Path) -> None:
    content = os.urandom(5_000_001)
    (tmp_path / "source").write_bytes(content)
    streams, path = house.streams(way), b"odd \xff\n%+" + way.encode()
    done = await streams.put_file(house.sandbox_id, tmp_path / "source", path)
    assert (done.files, done.size_bytes) == (1, len(content))
    assert await streams.get_file(house.sandbox_id, path, tmp_path / "copy") == len(content)
    assert (tmp_path / "copy").read_bytes() == content
    held = io.BytesIO()
    await streams.get_file(house.sandbox_id, path, held)
    assert held.getvalue() == content
    assert sorted(os.listdir(tmp_path)) == ["copy", "source"]


async def test_an_empty_file_is_a_file(house: House) -> None:
    await house.streams().put_file(house.sandbox_id, io.BytesIO(b""), "empty")
    held = io.BytesIO()
    assert await house.streams().get_file(house.sandbox_id, "empty", held) == 0


async def test_trees_go_in_and_come_out(house: House, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "folder" / "none").mkdir(parents=True)
    (tree / "folder" / "file").write_bytes(b"x" * 100_000)
    (tree / "link").symlink_to("folder/file")
    (tree / "run").write_text("#!/bin/sh\n")
    (tree / "run").chmod(0o755)
    streams = house.streams()
    await streams.put_tree(house.sandbox_id, tree, "moved")
    (tmp_path / "out").mkdir()
    await streams.get_tree(house.sandbox_id, "moved", tmp_path / "out")
    found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*")}
    assert found == {f"moved{rest}" for rest in ("", "/folder", "/folder/none", "/folder/file", "/link", "/run")}
    assert (tmp_path / "out" / "moved" / "link").readlink() == Path("folder/file")
    assert (tmp_path / "out" / "moved" / "run").stat().st_mode & 0o777 == 0o755


async def test_what_is_not_there_cannot_be_got(house: House, tmp_path: Path) -> None:
    with pytest.raises(SandkeepError) as caught:
        await house.streams().get_file(house.sandbox_id, "nowhere", tmp_path / "copy")
    assert caught.value.code == "not_found"
    with pytest.raises(SandkeepError) as caught:
        await house.streams().get_tree(house.sandbox_id, "nowhere", tmp_path)
    assert caught.value.code == "not_found"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("how", ["digest", "message", "cut", "text"])
async def test_what_does_not_arrive_whole_changes_nothing(house: House, how: str) -> None:
    with house.daemon.connect() as client:
        client.sandbox.write_file(house.sandbox_id, f"kept-{how}", data=b"as it was")
        target = frames.target("files", house.sandbox_id, path=f"kept-{how}", op="put")
        async with websocket(house.plain(), target) as connection:
            await connection.send_message(b"half of it")
            if how == "cut":
                connection.wire.cut()
            else:
                said = {"digest": '{"kind":"end","sha256":"' + "0" * 64 + '"}', "message": '{"kind":"eof"}'}
                await connection.send_message(said.get(how, "no message"))
            got, code = await everything(connection)
        assert how == "cut" or ([one["error"]["code"] for one in got], code) == (["invalid"], 1008)
        assert client.sandbox.read_file(house.sandbox_id, f"kept-{how}").data == b"as it was"
        listed = partial(client.sandbox.list_dir, house.sandbox_id, ".")
        until(lambda: not [entry.name for entry in listed().entries if entry.name.startswith(".")])


# -- attach -----------------------------------------------------------------------------------------------------------


@both
async def test_a_process_is_attached_to_both_ways(house: House, way: str) -> None:
    name = f"cat-{way}"
    house.launch('echo earlier; while read line; do echo "<$line>"; done; echo end >&2; exit 4', name, stdin=True)
    async with house.streams().logs(house.sandbox_id, name) as log:
        await log.__anext__()
    async with house.streams(way).attach(house.sandbox_id, name) as process:
        await process.send(b"word\n")
        assert await process.__anext__() == (frames.STDOUT, 8, b"<word>\n")
        await process.send_eof()
        assert [piece.data async for piece in process] == [b"end\n"]
    assert process.exit is not None
    assert process.exit.exit_code == 4


async def test_what_was_written_before_is_there_on_request(house: House) -> None:
    house.launch("echo earlier; cat", "earlier", stdin=True)
    async with house.streams().attach(house.sandbox_id, "earlier", stdout_offset=0) as process:
        assert (await process.__anext__()).data == b"earlier\n"
        await process.send_eof()


async def test_a_signal_is_on_record(house: House) -> None:
    house.launch(["sleep", "1000"], "slept", stdin=True)  # a shell that just begins forgets an interrupt
    async with house.streams().attach(house.sandbox_id, "slept") as process:
        await process.signal("INT")
        assert [piece async for piece in process] == []
    assert process.exit is not None
    assert process.exit.exit_code == 130
    with house.daemon.connect() as client:
        assert client.process.get(house.sandbox_id, "slept").last_signal == "INT"


async def test_who_only_looks_cannot_act(house: House) -> None:
    house.launch("cat", "looked-at", stdin=True)
    async with house.streams().attach(house.sandbox_id, "looked-at", read_only=True) as process:
        await process.signal("KILL")
        with pytest.raises(SandkeepError) as caught:
            await process.__anext__()
    assert caught.value.code == "permission_denied"
    with house.daemon.connect() as client:
        assert client.process.get(house.sandbox_id, "looked-at").status == "running"


async def test_the_end_of_the_process_while_much_is_written_to_it_is_an_end(house: House) -> None:
    house.launch("head -c 10; exit 7", "full", stdin=True)
    async with house.streams().attach(house.sandbox_id, "full", stdout_offset=0) as process:

        async def write() -> None:
            for _ in range(20):
                try:
                    await process.send(bytes(200_000))
                except SandkeepError:
                    return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            async for _ in process:
                pass
            nursery.cancel_scope.cancel()
    assert process.exit is not None
    assert process.exit.exit_code == 7


async def seen(terminal: Any, word: bytes) -> bytes:
    """What a terminal shows until a word was in it."""
    shown = b""
    async for piece in terminal:
        assert piece.stream == frames.TERMINAL
        assert piece.offset == len(shown)
        shown += piece.data
        if word in shown:
            return shown
    raise AssertionError(f"{word!r} is not in {shown!r}")


@both
@pytest.mark.needs("tmux")
async def test_a_terminal_is_shown_typed_into_and_resized(house: House, way: str) -> None:
    name = f"shell-{way}"
    house.launch(["sh"], name, tty=True)
    async with house.streams(way).attach(house.sandbox_id, name, rows=30, cols=100) as terminal:
        await terminal.send(b"stty size; echo so-$((1 + 1))\n")
        assert b"30 100" in await seen(terminal, b"so-2")
    async with house.streams(way).attach(house.sandbox_id, name, rows=30, cols=100) as terminal:
        await terminal.resize(20, 70)
        await terminal.send(b"clear; until stty size | grep '20 70'; do sleep 0.01; done; echo so-$((1 + 2))\n")
        await seen(terminal, b"so-3")
        await terminal.send(b"exit 5\n")
        async for _ in terminal:
            pass
    assert terminal.exit is not None
    assert terminal.exit.exit_code == 5


@pytest.mark.needs("tmux")
async def test_a_terminal_that_only_looks_types_nothing(house: House) -> None:
    house.launch(["sh"], "watched", tty=True)
    streams = house.streams()
    async with streams.attach(house.sandbox_id, "watched", read_only=True) as viewer:
        async with streams.attach(house.sandbox_id, "watched") as terminal:
            await viewer.send(b"echo evil-$((1 + 1))\n")
            await terminal.send(b"echo so-$((1 + 1))\n")
            shown = await seen(terminal, b"so-2")
        await seen(viewer, b"so-2")
    assert b"evil" not in shown


@pytest.mark.needs("tmux")
async def test_detaching_leaves_the_terminal_running(house: House) -> None:
    house.launch(["sh"], "detached", tty=True)
    async with house.streams().attach(house.sandbox_id, "detached") as terminal:
        await terminal.send(b"\x02d")  # tmux's own keys for it
        async for _ in terminal:
            pass
    assert terminal.exit is None
    with house.daemon.connect() as client:
        assert client.process.get(house.sandbox_id, "detached").status == "running"


# -- what goes wrong at the caller's -----------------------------------------------------------------------------------


async def test_a_caller_s_error_comes_out_as_it_was(house: House) -> None:
    house.launch("sleep 1000", "left")
    with pytest.raises(ZeroDivisionError):
        async with house.streams().logs(house.sandbox_id, "left"):
            raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        async with house.streams().attach(house.sandbox_id, "left"):
            raise ZeroDivisionError


async def test_a_caller_may_be_cancelled(house: House) -> None:
    house.launch("sleep 1000", "cancelled")
    with trio.CancelScope() as scope:
        async with house.streams().logs(house.sandbox_id, "cancelled") as log:
            scope.deadline = trio.current_time() + 0.05
            await log.__anext__()
    assert scope.cancelled_caught


async def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(SandkeepError) as caught:
        async with StreamClient(f"unix:{tmp_path}/none").events():
            pass
    assert caught.value.code == "not_ready"


@pytest.mark.parametrize("answer", [b"", b"hello\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"])
async def test_who_listens_and_says_nothing_of_use_is_no_stream_server(tmp_path: Path, answer: bytes) -> None:
    async def serve(stream: trio.abc.Stream) -> None:
        await stream.receive_some(1)
        await stream.send_all(answer)
        await stream.aclose()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/other")
        listener.listen()
        async with trio.open_nursery() as nursery:
            trio_listener = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
            await nursery.start(trio.serve_listeners, serve, [trio_listener])
            with pytest.raises(SandkeepError, match="does not answer as a stream server"):
                async with StreamClient(f"unix:{tmp_path}/other").events():
                    pass
            nursery.cancel_scope.cancel()
