"""Fingerprints of commands: one on record tells its reader nothing of what a command was given, and knows it again."""

import base64
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.inside import Inside, inside

from sandkeep.errors import StateError
from sandkeep.events import Meta, SandboxAdopted
from sandkeep.protocol.clock import now_us
from sandkeep.protocol.methods import METHODS
from sandkeep_store.eventlog import fingerprint_key
from sandkeep_store.eventlog.eventless_commands import REMEMBERED_US
from sandkeep_store.eventlog.fingerprint_key import CommandKey
from sandkeep_store.eventlog.log import NewEvent
from sandkeepd.api.fingerprint import fingerprint

SIZES = (16, 32, 40, 64, 128)
PIN = "4711"
GUESSES = [f"{number:04}" for number in range(10_000)]
HASHES: list[Callable[[bytes], Any]] = [
    hashlib.sha256, hashlib.sha1, hashlib.md5, hashlib.blake2b, hashlib.blake2s,
    lambda said: hashlib.blake2b(said, digest_size=16), lambda said: hashlib.blake2b(said, digest_size=32),
]  # fmt: skip


def digests(state_dir: str) -> set[str]:
    """What looks like a digest in any file of the state directory that is not kept secret."""
    files = [path for path in Path(state_dir).rglob("*") if path.is_file() and path.name != fingerprint_key.FILE_NAME]
    assert {"events.db", "commands.db"} <= {path.name for path in files}
    names = " ".join(path.name for path in files).encode()
    return {found.decode() for said in (names, *(path.read_bytes() for path in files)) for found in _hex(said)}


def _hex(said: bytes) -> Iterator[bytes]:
    """The beginnings and ends of what has only hexadecimal digits: in a file other such may stand beside a digest."""
    for run in re.findall(rb"[0-9a-f]{16,}", said):
        yield from (part for size in SIZES if len(run) >= size for part in (run[:size], run[-size:]))


async def guessed(of: Callable[[str], dict[str, Any]], method: str, found: set[str]) -> set[str]:
    """The guesses that a digest on record confirms: of the secret, or of all that the command was given with it."""
    right = set()
    for guess in GUESSES:
        bare = METHODS[method].params(**of(guess))
        given = [msgspec.msgpack.encode(bare, order="deterministic"), guess.encode()]
        tried = {make(said).hexdigest()[:size] for make in HASHES for said in given for size in SIZES}
        tried.add((await fingerprint(METHODS[method], bare)).partition(" ")[2])
        if found & tried:
            right.add(guess)
    return right


COMMANDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "sandbox.exec": lambda pin: {"sandbox_id": "box", "command": "cat", "stdin": pin.encode()},
    "process.launch": lambda pin: {"sandbox_id": "box", "name": "q", "command": "true", "env": {"PIN": pin}},
    "process.write_stdin": lambda pin: {"sandbox_id": "box", "name": "p", "data": pin.encode()},
    "sandbox.write_file": lambda pin: {"sandbox_id": "box", "path": "f", "data": pin.encode()},
}


async def prepare(daemon: Inside, source: str) -> None:
    await daemon.call("sandbox.create", image_id=await daemon.image(source), name="box")
    await daemon.call("process.launch", sandbox_id="box", name="p", command=["cat"], stdin=True)


@pytest.mark.parametrize("method", COMMANDS)
async def test_no_digest_on_record_tells_a_pin(method: str, state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon:
        await prepare(daemon, source)
        await daemon.call("stream.access", renew=True, command_id="d")
        await daemon.call(method, **COMMANDS[method](PIN), command_id="c")
        key = daemon.core.log.command_key
        command = METHODS[method].params(**COMMANDS[method](PIN))
        if METHODS[method].intent is None:  # known by the sandbox that its name means
            command = msgspec.structs.replace(command, sandbox_id=daemon.id_of())
        on_record = key.keyed(await fingerprint(METHODS[method], command))
        found = digests(state_dir)
        assert on_record.partition(":")[2] in found  # it was looked at where it is
        assert await guessed(COMMANDS[method], method, found) == set()
        await daemon.call("sandbox.terminate", sandbox_id="box")


async def test_the_key_is_for_the_daemons_eyes_only_and_in_no_other_file(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon:
        await prepare(daemon, source)
        await daemon.call("sandbox.exec", sandbox_id="box", command="true", command_id="c")
        await daemon.call("store.compact", older_than_s=86_400)
        await daemon.call("sandbox.terminate", sandbox_id="box")
    path = Path(state_dir, fingerprint_key.FILE_NAME)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    key = path.read_bytes()
    forms = (key, key.hex().encode(), base64.b64encode(key).rstrip(b"="))
    others = [other for other in Path(state_dir).rglob("*") if other.is_file() and other != path]
    assert [other for other in others if any(form in other.read_bytes() for form in forms)] == []


# -- what a repeat is told --------------------------------------------------------------------------------------------

EXEC = {"sandbox_id": "box", "command": "echo x >>ran; cat ran", "stdin": b"4711", "command_id": "c"}
WRITE = {"sandbox_id": "box", "name": "p", "data": b"4711", "command_id": "d"}


async def twice(state_dir: str, source: str, between: Callable[[str], None]) -> list[Any]:
    """Give two commands, one with an event and one without, do something while no daemon runs, and repeat them; answer
    what the repeats were told, what commands that differ are told, and what was done in the sandbox.
    """
    async with inside(state_dir) as daemon:
        await prepare(daemon, source)
        await daemon.call("sandbox.exec", **EXEC)
        await daemon.call("process.write_stdin", **WRITE)
    between(state_dir)
    told = []
    async with inside(state_dir) as daemon:
        await daemon.reconciler.run()
        for method, command in (("sandbox.exec", EXEC), ("process.write_stdin", WRITE)):
            for change in ({}, {"data" if "data" in command else "stdin": b"0815"}):
                told.append(await _told(daemon, method, {**command, **change}))
        ran = await daemon.call("sandbox.exec", sandbox_id="box", command="cat ran")
        assert ran.stdout == b"x\n"
        written = await daemon.call("process.read", sandbox_id="box", name="p")
        assert written.stdout in (b"", b"4711")
        again = await _told(daemon, "sandbox.exec", {**EXEC, "command_id": "new"})
        assert again == "done"
        await daemon.call("sandbox.terminate", sandbox_id="box")
    return told


async def _told(daemon: Inside, method: str, command: dict[str, Any]) -> str:
    try:
        await daemon.call(method, **command)
    except StateError as refused:
        return (
            ("lost" if "lost the key" in refused.message else "another") if refused.code == "conflict" else str(refused)
        )
    return "done"


KNOWN = ["done", "another"] * 2
LOST = ["lost", "lost"] * 2


def _nothing(state_dir: str) -> None:
    pass


def _remove(state_dir: str) -> None:
    os.unlink(f"{state_dir}/{fingerprint_key.FILE_NAME}")


def _open_to_all(state_dir: str) -> None:
    os.chmod(f"{state_dir}/{fingerprint_key.FILE_NAME}", 0o644)


def _give_away(state_dir: str) -> None:
    os.chown(f"{state_dir}/{fingerprint_key.FILE_NAME}", 70_001, 70_001)


def _shorten(state_dir: str) -> None:
    os.truncate(f"{state_dir}/{fingerprint_key.FILE_NAME}", 31)


def _lead_elsewhere(state_dir: str) -> None:
    os.rename(f"{state_dir}/{fingerprint_key.FILE_NAME}", f"{state_dir}/elsewhere")
    os.symlink("elsewhere", f"{state_dir}/{fingerprint_key.FILE_NAME}")


@pytest.mark.parametrize("between", [_nothing, _remove, _open_to_all, _give_away, _shorten, _lead_elsewhere])
async def test_with_its_key_a_command_is_known_and_without_it_nothing_is_done_twice(
    between: Callable[[str], None], state_dir: str, source: str
) -> None:
    if between is _give_away and os.geteuid():
        pytest.skip("only root can give a file away")
    assert await twice(state_dir, source, between) == (KNOWN if between is _nothing else LOST)
    path = Path(state_dir, fingerprint_key.FILE_NAME)
    assert (path.is_symlink(), stat.S_IMODE(path.stat().st_mode), path.stat().st_uid) == (False, 0o600, os.geteuid())


async def test_a_key_that_cannot_be_written_holds_until_the_daemon_stops(state_dir: str, source: str) -> None:
    """A directory in its place is what not even root can write over."""
    os.makedirs(f"{state_dir}/{fingerprint_key.FILE_NAME}", mode=0o700)
    async with inside(state_dir) as daemon:
        await prepare(daemon, source)
        assert [await _told(daemon, "sandbox.exec", EXEC) for _ in range(2)] == ["done", "done"]
        assert await _told(daemon, "sandbox.exec", {**EXEC, "stdin": b""}) == "another"
    async with inside(state_dir) as daemon:
        await daemon.reconciler.run()
        assert await _told(daemon, "sandbox.exec", EXEC) == "lost"
        await daemon.call("sandbox.terminate", sandbox_id="box")


async def test_commands_of_daemons_that_had_no_key_are_known_again(
    state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have put down a digest that anybody can compute, which a redaction makes a keyed one."""
    with monkeypatch.context() as before:
        before.setattr(CommandKey, "keyed", lambda key, plain: plain)

        def upgrade(state_dir: str) -> None:
            before.undo()
            _remove(state_dir)

        assert await twice(state_dir, source, upgrade) == KNOWN


async def test_a_redaction_leaves_no_digest_that_anybody_can_compute(
    state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with inside(state_dir) as daemon:
        await prepare(daemon, source)
        monkeypatch.setattr(CommandKey, "keyed", lambda key, plain: plain)
        await daemon.call("sandbox.exec", **EXEC)
        monkeypatch.undo()
        position = await _position(daemon)
        found = digests(state_dir)
        assert await guessed(lambda pin: _without_id({**EXEC, "stdin": pin.encode()}), "sandbox.exec", found) == {PIN}
        await daemon.call("store.redact", position=position)
        found = digests(state_dir)
        assert await guessed(lambda pin: _without_id({**EXEC, "stdin": pin.encode()}), "sandbox.exec", found) == set()
        assert await _told(daemon, "sandbox.exec", EXEC) == "done"
        assert await _told(daemon, "sandbox.exec", {**EXEC, "stdin": b""}) == "another"
        tomorrow = now_us() + REMEMBERED_US
        monkeypatch.setattr("sandkeep_store.eventlog.log.now_us", lambda: tomorrow)
        await daemon.call("store.redact", position=position)
        event = daemon.core.log.at(position)
        assert event is not None
        assert msgspec.json.decode(event.meta, type=Meta).command == "sandbox.exec"
        assert daemon.core.log.verify() == []
        await daemon.call("sandbox.terminate", sandbox_id="box")


async def _position(daemon: Inside) -> int:
    history = await daemon.call("sandbox.history", sandbox_id="box")
    return int(max(event.position for event in history.events if event.type == "process.launch_requested"))


def _without_id(command: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in command.items() if name != "command_id"}


async def test_of_events_that_are_committed_together_the_first_tells_the_command(state_dir: str) -> None:
    async with inside(state_dir) as daemon:
        log, new = daemon.core.log, NewEvent("sbx_1", SandboxAdopted())
        await log.append([new, new, new], Meta(command_id="c", command="sandbox.fork name:digest", owner="uid:0"))
        metas = [msgspec.json.decode(event.meta, type=Meta) for event in (await log.page(0, 3)).events]
        assert [meta.command for meta in metas] == ["sandbox.fork name:digest", None, None]
        assert [meta.command_id for meta in metas] == ["c", "c", "c"]
        assert await log.find_command("c", "uid:0") == log.at(1)
