"""The daemon as a whole, on the local provider: real processes, a real log, real restarts."""

import json
import os
import signal
import sqlite3
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.expect import refused, until
from tests.support.patience import patient

from sandkeep.ids import new_id
from sandkeep.protocol.methods import METHODS, Access

pytestmark = pytest.mark.needs("bwrap")


def types(client: Any, sandbox_id: str) -> list[str]:
    return [event.type for event in client.sandbox.history(sandbox_id).events]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("project")
    (folder / "hello").write_text("hello\n")
    (folder / "empty").mkdir()
    (folder / "link").symlink_to("hello")
    return str(folder)


@pytest.fixture(scope="module")
def image_id(shared_daemon: Any, project: str) -> str:
    with shared_daemon.connect() as client:
        return str(client.image.create(project).image_id)


@pytest.fixture(scope="module")
def sandbox_id(shared_daemon: Any, image_id: str) -> str:
    with shared_daemon.connect() as client:
        return str(client.sandbox.create(image_id).sandbox_id)


# -- the main job -----------------------------------------------------------------------------------------------------


def test_a_command_runs_in_a_sandbox_made_of_a_directory(client: Any, sandbox_id: str) -> None:
    result = client.sandbox.exec(sandbox_id, ["sh", "-c", "cat link; echo oops >&2; exit 3"])
    assert (result.exit_code, result.stdout, result.stderr, result.timed_out) == (3, b"hello\n", b"oops\n", False)
    assert (result.stdout_bytes, result.stderr_bytes, result.stdout_truncated) == (6, 5, False)


def test_every_transition_is_an_event(client: Any, image_id: str) -> None:
    sandbox_id = client.sandbox.create(image_id).sandbox_id
    client.sandbox.exec(sandbox_id, ["true"])
    process = client.process.launch(sandbox_id, ["sleep", "60"], name="nap")
    client.process.signal(sandbox_id, "nap", "TERM")
    assert client.process.wait(sandbox_id, "nap").exit_code == 128 + signal.SIGTERM
    client.sandbox.terminate(sandbox_id)
    assert types(client, sandbox_id) == [
        "sandbox.create_requested",
        "sandbox.created",
        "process.launch_requested",
        "process.started",
        "process.exited",
        "process.launch_requested",
        "process.started",
        "process.signalled",
        "process.exited",
        "sandbox.terminate_requested",
        "sandbox.terminated",
    ]
    events = client.sandbox.history(sandbox_id).events
    assert [event.position for event in events] == sorted({event.position for event in events})
    assert events[0].meta["owner"] == f"uid:{os.geteuid()}"
    assert events[1].meta["caused_by"].endswith(f":{events[0].position}")
    assert [e.revision for e in events if e.stream == process.process_id] == [1, 2, 3, 4]


def test_output_is_exact_and_streams_are_apart(client: Any, sandbox_id: str) -> None:
    every_byte = r"""awk 'BEGIN { for (i = 0; i < 256; i++) printf "%c", i }' </dev/null"""
    script = every_byte + r""" | LC_ALL=C tr -d '\n' >&2; printf 'a\0b'"""
    result = client.sandbox.exec(sandbox_id, ["sh", "-c", script], env={"LC_ALL": "C"})
    assert result.stdout == b"a\0b"
    assert result.stderr == bytes(b for b in range(256) if b != 10)


def test_more_than_goes_inline_is_told_and_in_the_journal(client: Any, sandbox_id: str) -> None:
    result = client.sandbox.exec(sandbox_id, ["sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x"], inline_bytes=1000)
    assert (result.stdout, result.stdout_bytes, result.stdout_truncated) == (b"x" * 1000, 3_000_000, True)
    offset, parts = 0, []
    while True:
        page = client.process.read(sandbox_id, result.process_id, stdout_offset=offset)
        parts.append(page.stdout)
        offset = page.next_stdout_offset
        if page.ended:
            break
    assert b"".join(parts) == b"x" * 3_000_000


def test_stdin_env_working_dir(client: Any, sandbox_id: str) -> None:
    result = client.sandbox.exec(
        sandbox_id,
        'pwd; echo "$GREETING"; cat',
        env={"GREETING": 'it\'s "me"\n$HOME'},
        working_dir="/workspace/empty",
        stdin=b"in\0put",
    )
    assert result.stdout == b'/workspace/empty\nit\'s "me"\n$HOME\nin\0put'


def test_a_process_with_an_input(client: Any, sandbox_id: str) -> None:
    client.process.launch(sandbox_id, ["cat"], name="cat", stdin=True)
    client.process.write_stdin(sandbox_id, "cat", b"one\n")
    client.process.write_stdin(sandbox_id, "cat", b"two\n", eof=True)
    assert client.process.wait(sandbox_id, "cat").exit_code == 0
    assert client.process.read(sandbox_id, "cat").stdout == b"one\ntwo\n"
    refused("not_ready", client.process.write_stdin, sandbox_id, "cat", b"three")


@pytest.mark.parametrize(
    ("command", "code"), [(["/no/such"], 127), (["/workspace/hello"], 126), (["sh", "-c", "kill -9 $$"], 137)]
)
def test_exit_codes_are_the_shells(client: Any, sandbox_id: str, command: list[str], code: int) -> None:
    assert client.sandbox.exec(sandbox_id, command).exit_code == code


def test_a_time_limit_kills_the_group_and_keeps_the_output(client: Any, sandbox_id: str) -> None:
    script = "trap '' TERM; echo kept; sleep 4711 & sleep 4711"
    result = client.sandbox.exec(sandbox_id, ["sh", "-c", script], timeout_s=5)
    assert (result.timed_out, result.exit_code, result.stdout) == (True, 124, b"kept\n")
    look = "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done"
    until(lambda: b"sleep 4711" not in client.sandbox.exec(sandbox_id, look).stdout)


def test_secrets_reach_the_process_and_nothing_else(client: Any, shared_daemon: Any, image_id: str) -> None:
    word = "s3cr3t-" + new_id("prc")
    sandbox_id = client.sandbox.create(image_id, secrets={"BOX": word + "-box"}).sandbox_id
    result = client.sandbox.exec(sandbox_id, ["sh", "-c", 'echo "$BOX $OWN" | wc -c'], secrets={"OWN": word + "-own"})
    assert int(result.stdout) == 2 * (len(word) + 4) + 2
    assert client.sandbox.get(sandbox_id).secrets == ["BOX"]
    assert client.store.verify().ok  # by then all documents are written
    for folder, _, names in os.walk(shared_daemon.root):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path) and not os.path.islink(path):
                assert word.encode() not in Path(path).read_bytes(), path
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            assert word.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue


def test_hundreds_of_processes_at_once(client: Any, image_id: str) -> None:
    sandbox_id = client.sandbox.create(image_id).sandbox_id
    for number in range(200):
        client.process.launch(sandbox_id, ["sh", "-c", f"echo {number}; exec sleep 300"], name=f"p{number}")
    assert client.sandbox.get(sandbox_id).running_processes == 200
    until(lambda: client.process.read(sandbox_id, "p199", wait_s=5).stdout == b"199\n")
    client.sandbox.terminate(sandbox_id)
    assert client.process.get(sandbox_id, "p150").exit_code == 137


# -- names, states, repeats -------------------------------------------------------------------------------------------


def test_the_name_of_a_process_is_free_when_it_has_ended(client: Any, sandbox_id: str) -> None:
    first = client.process.launch(sandbox_id, "echo first; read -r line", stdin=True, name="one").process_id
    refused("conflict", client.process.launch, sandbox_id, ["true"], name="one")
    client.process.write_stdin(sandbox_id, "one", eof=True)
    client.process.wait(sandbox_id, "one")
    second = client.process.launch(sandbox_id, "echo second; exec sleep 1000", name="one").process_id
    assert client.process.get(sandbox_id, "one").process_id == second
    refused("conflict", client.process.launch, sandbox_id, ["true"], name="one")
    until(lambda: client.process.read(sandbox_id, "one").stdout)
    client.process.signal(sandbox_id, "one", signal="KILL")
    assert client.process.wait(sandbox_id, "one").exit_code == 137
    assert client.process.get(sandbox_id, first).exit_code == 1
    assert client.process.read(sandbox_id, first).stdout == b"first\n"
    assert client.process.read(sandbox_id, "one").stdout == b"second\n"
    listed = client.process.list(sandbox_id=sandbox_id, all=True).processes
    assert [process.process_id for process in listed if process.name == "one"] == [first, second]


def test_output_followed_by_a_name_stays_with_its_process(client: Any, shared_daemon: Any, sandbox_id: str) -> None:
    client.process.launch(sandbox_id, "echo first; read -r line; echo end", stdin=True, name="one")
    with client.another() as other:
        read = other.read_output(sandbox_id, "one")
        assert next(read).stdout == b"first\n"
        client.process.write_stdin(sandbox_id, "one", eof=True)
        client.process.wait(sandbox_id, "one")
        client.process.launch(sandbox_id, "echo something longer than both lines", name="one")
        assert b"".join(piece.stdout for piece in read) == b"end\n"


def test_a_name_is_taken_as_long_as_its_sandbox_is_there(client: Any, image_id: str) -> None:
    first = client.sandbox.create(image_id, name="my-box.1")
    assert (first.name, client.sandbox.get("my-box.1").sandbox_id) == ("my-box.1", first.sandbox_id)
    refused("conflict", client.sandbox.create, image_id, name="my-box.1")
    client.sandbox.terminate("my-box.1")
    again = client.sandbox.create(image_id, name="my-box.1").sandbox_id
    assert client.sandbox.terminate("my-box.1").sandbox_id == again != first.sandbox_id


def test_images_are_shared_by_content(client: Any, project: str, image_id: str) -> None:
    assert client.image.create(project).image_id == image_id
    other = client.image.create(project, clean=True).image_id
    assert other != image_id
    assert client.image.remove(other).status == "removed"
    refused("not_found", client.image.get, "img_none")


def test_the_removal_of_one_of_an_images_names_takes_only_that(client: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("of two names\n")
    made = client.image.create(str(tmp_path), name="first").image_id
    client.image.tag(made, "second")
    untagged = client.image.remove("second:latest", command_id="remove")
    assert (untagged.image_id, untagged.status, untagged.names) == (made, "ready", ["first"])
    assert client.image.remove("second:latest", command_id="remove") == untagged
    refused("not_found", client.image.remove, "second", command_id="another")
    client.image.tag(made, "third")
    assert client.image.untag("third", "third", command_id="untag") == untagged
    assert client.image.untag("third", "third", command_id="untag") == untagged
    assert client.image.remove("first").status == "removed"
    made = client.image.create(str(tmp_path), name="first").image_id
    client.image.tag(made, "second")
    assert client.image.remove(made).status == "removed"


def test_an_image_in_use_stays(client: Any, image_id: str, sandbox_id: str) -> None:
    refused("in_use", client.image.remove, image_id)


def test_a_command_given_again_is_done_once(client: Any, image_id: str) -> None:
    first = client.sandbox.create(image_id, command_id="create-1")
    assert client.sandbox.create(image_id, command_id="create-1").sandbox_id == first.sandbox_id
    box = first.sandbox_id
    once = client.sandbox.exec(box, "echo x >>count; wc -l <count", command_id="exec-1")
    again = client.sandbox.exec(box, "echo x >>count; wc -l <count", command_id="exec-1")
    assert (once.process_id, once.stdout) == (again.process_id, again.stdout)
    assert client.sandbox.exec(box, ["cat", "count"]).stdout == b"x\n"
    refused("conflict", client.sandbox.terminate, box, command_id="exec-1")
    client.sandbox.terminate(box, command_id="end-1")
    assert client.sandbox.terminate(box, command_id="end-1").status == "stopped"


def test_the_same_command_at_the_same_time_is_done_once(shared_daemon: Any, sandbox_id: str) -> None:
    results: list[Any] = []

    def run() -> None:
        with shared_daemon.connect() as client:
            results.append(client.sandbox.exec(sandbox_id, ["sh", "-c", "echo $$"], command_id="both"))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({result.process_id for result in results}) == 1
    assert len({result.stdout for result in results}) == 1


def test_terminating_is_final_and_repeatable(client: Any, image_id: str) -> None:
    sandbox_id = client.sandbox.create(image_id).sandbox_id
    client.process.launch(sandbox_id, ["sh", "-c", "echo last words; exec sleep 300"], name="talker")
    until(lambda: client.process.read(sandbox_id, "talker", wait_s=5).stdout)
    assert client.sandbox.terminate(sandbox_id).status == "stopped"
    assert client.sandbox.terminate(sandbox_id).terminated_reason == "requested"
    refused("not_ready", client.sandbox.exec, sandbox_id, ["true"])
    assert client.process.read(sandbox_id, "talker").stdout == b"last words\n"
    assert sandbox_id not in [s.sandbox_id for s in client.sandbox.list().sandboxes]
    assert sandbox_id in [s.sandbox_id for s in client.sandbox.list(all=True).sandboxes]


def test_a_sandbox_whose_first_process_is_killed_failed(client: Any, shared_daemon: Any, image_id: str) -> None:
    view = client.sandbox.create(image_id)
    client.process.launch(view.sandbox_id, ["sleep", "300"], name="nap")
    os.kill(_first_pid(shared_daemon, view.sandbox_id), signal.SIGKILL)
    assert until(lambda: client.sandbox.get(view.sandbox_id).status == "failed")
    assert client.process.wait(view.sandbox_id, "nap").status in ("lost", "exited")
    refused("not_ready", client.sandbox.exec, view.sandbox_id, ["true"])
    assert client.sandbox.terminate(view.sandbox_id).status == "stopped"


def _first_pid(daemon: Any, sandbox_id: str) -> int:
    with daemon.connect() as client:
        created = next(e for e in client.sandbox.history(sandbox_id).events if e.type == "sandbox.created")
    return int(created.data["handle"]["first"]["pid"])


def test_limits_of_time(client: Any, image_id: str) -> None:
    short = client.sandbox.create(image_id, max_lifetime_s=4).sandbox_id
    client.process.launch(short, ["sleep", "300"], name="busy")
    busy = client.sandbox.create(image_id, idle_timeout_s=4).sandbox_id
    client.process.launch(busy, ["sleep", "300"], name="busy")
    idle = client.sandbox.create(image_id, idle_timeout_s=4).sandbox_id
    assert until(lambda: client.sandbox.get(idle).terminated_reason) == "idle_timeout"
    assert until(lambda: client.sandbox.get(short).terminated_reason) == "max_lifetime"
    assert client.sandbox.get(busy).status == "running"
    client.sandbox.terminate(busy)


def test_an_old_exec_is_read_from_the_log(client: Any, image_id: str) -> None:
    sandbox_id = client.sandbox.create(image_id).sandbox_id
    first = client.sandbox.exec(sandbox_id, ["echo", "first"])
    for _ in range(40):
        client.sandbox.exec(sandbox_id, ["true"])
    assert first.process_id not in [p.process_id for p in client.process.list(sandbox_id, all=True).processes]
    assert client.process.get(sandbox_id, first.process_id).exit_code == 0
    assert client.process.read(sandbox_id, first.process_id).stdout == b"first\n"


# -- events -----------------------------------------------------------------------------------------------------------


def test_events_from_a_token_and_as_they_come(client: Any, shared_daemon: Any, sandbox_id: str) -> None:
    start = client.event.list(after="now").next
    seen: list[str] = []

    def follow() -> None:
        with shared_daemon.connect() as other:
            token = start
            while "process.exited" not in seen:
                page = other.event.list(after=token, sandbox_id=sandbox_id, wait_s=10)
                seen.extend(event.type for event in page.events)
                token = page.next

    thread = threading.Thread(target=follow)
    thread.start()
    client.sandbox.exec(sandbox_id, ["true"])
    thread.join(patient(60))
    assert seen == ["process.launch_requested", "process.started", "process.exited"]
    only = client.event.list(after=start, type="process.started").events
    assert [event.type for event in only] == ["process.started"]


def test_tokens_of_another_log_are_refused(client: Any) -> None:
    refused("wrong_log", client.event.list, after="00000000-0000-0000-0000-000000000000:3")
    refused("invalid", client.event.list, after="nonsense")


# -- restarts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_sandboxes_and_processes_outlive_the_daemon(running_daemon: Any, project: str, how: str) -> None:
    daemon = running_daemon
    with daemon.connect() as client:
        box = client.sandbox.create(client.image.create(project).image_id, secrets={"TOKEN": "kept"}).sandbox_id
        client.process.launch(
            box, ["sh", "-c", "i=0; while [ $i -lt 100000 ]; do echo $i; i=$((i+1)); sleep 0.01; done"], name="count"
        )
        client.process.launch(box, "until [ -e go ]; do sleep 0.01; done; exit 7", name="short")
        client.process.launch(box, ["cat"], name="cat", stdin=True)
        client.process.write_stdin(box, "cat", b"before\n")
        until(lambda: client.process.read(box, "count", wait_s=5).stdout.count(b"\n") > 3)
        counting = client.process.get(box, "count").process_id
        first = client.sandbox.history(box).events[1].data["handle"]["first"]["pid"]
    getattr(daemon, how)()
    Path(f"/proc/{first}/root/workspace/go").touch()
    out = Path(daemon.state_dir, "sandboxes", box, "out")
    until(lambda: " 7\n" in (out / "exits").read_text())  # while nobody is there
    until(lambda: (out / "p" / f"{counting}.stdout").read_bytes().count(b"\n") > 60)
    daemon.start()
    with daemon.connect() as client:
        assert client.sandbox.get(box).status == "running"
        assert client.process.wait(box, "short", timeout_s=patient(60)).exit_code == 7
        client.process.write_stdin(box, "cat", b"after\n", eof=True)
        assert client.process.wait(box, "cat", timeout_s=patient(60)).exit_code == 0
        assert client.process.read(box, "cat").stdout == b"before\nafter\n"
        assert client.sandbox.exec(box, ["sh", "-c", "echo $TOKEN"]).stdout == b"kept\n"
        client.process.signal(box, "count", "KILL")
        client.process.wait(box, "count", timeout_s=patient(60))
        numbers = client.process.read(box, "count", max_bytes=4_000_000).stdout.split()
        assert numbers == [str(i).encode() for i in range(len(numbers))]
        assert len(numbers) > 60
        assert "sandbox.adopted" in types(client, box)
        stopped = [e.type for e in client.event.list(type="daemon").events]
        assert stopped == (
            ["daemon.started", "daemon.stopped", "daemon.started"] if how == "stop" else ["daemon.started"] * 2
        )


def test_what_ended_while_the_daemon_was_away_is_lost(running_daemon: Any, project: str) -> None:
    daemon = running_daemon
    with daemon.connect() as client:
        box = client.sandbox.create(client.image.create(project).image_id).sandbox_id
        client.process.launch(box, ["sleep", "300"], name="nap")
        pid = _first_pid(daemon, box)
    daemon.stop()
    os.kill(pid, signal.SIGKILL)
    daemon.start()
    with daemon.connect() as client:
        until(lambda: client.sandbox.get(box).status == "lost")
        assert client.process.get(box, "nap").status == "lost"
        assert client.sandbox.terminate(box).status == "stopped"


def test_documents_are_rebuilt_byte_for_byte(running_daemon: Any, project: str) -> None:
    daemon = running_daemon
    with daemon.connect() as client:
        image_id = client.image.create(project).image_id
        boxes = [client.sandbox.create(image_id, labels={"n": str(n)}).sandbox_id for n in range(3)]
        for box in boxes:
            client.process.launch(box, ["true"], name="one")
            client.process.wait(box, "one")
        client.sandbox.terminate(boxes[2])
        assert client.store.verify().ok
        paths = [Path(daemon.state_dir, "sandboxes", box, "metadata.json") for box in boxes]
        before = [path.read_bytes() for path in paths]
        paths[0].unlink()
        paths[1].write_bytes(b"{}")
        assert len(client.store.verify().problems) == 2
        report = client.store.rebuild()
        assert (report.written, report.unchanged, report.removed) == (2, 1, 0)
        assert [path.read_bytes() for path in paths] == before
        assert client.store.verify().ok
    document = json.loads(before[0])
    assert list(document)[:5] == [
        "sandbox_id",
        "created_timestamp",
        "idle_timeout",
        "latest_checkpoint",
        "latest_snapshot",
    ]
    assert document["processes"][0]["exit_code"] == 0


def test_an_unknown_event_stops_the_views_and_passes_through(running_daemon: Any, project: str) -> None:
    """A log that a newer version wrote: reads go on up to there, nothing is changed, and clients see the event."""
    daemon = running_daemon
    with daemon.connect() as client:
        image_id = client.image.create(project).image_id
    daemon.stop()
    _append_unknown(f"{daemon.state_dir}/events.db")
    daemon.start()
    with daemon.connect() as client:
        status = client.daemon.status()
        assert not status.healthy
        assert "galaxy.collided" in status.problems[0]
        assert client.image.get(image_id).status == "ready"
        assert "galaxy.collided" in refused("storage_unavailable", client.sandbox.create, image_id).message
        assert "galaxy.collided" in [event.type for event in client.event.list().events]


def _append_unknown(path: str) -> None:
    from sandkeep_store.eventlog.row import COLUMNS, checksum

    with sqlite3.connect(path) as db:
        row = dict(
            zip(
                COLUMNS,
                db.execute(f"SELECT {', '.join(COLUMNS)} FROM events ORDER BY position DESC LIMIT 1").fetchone(),
                strict=True,
            )
        )
        row |= {
            "position": row["position"] + 1,
            "revision": row["revision"] + 1,
            "type": "galaxy.collided",
            "data": b'{"size":"large"}',
        }
        row["crc"] = checksum(*(row[name] for name in COLUMNS if name != "crc"))
        db.execute(
            f"INSERT INTO events ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})",
            [row[name] for name in COLUMNS],
        )
    db.close()


# -- bad input --------------------------------------------------------------------------------------------------------

WRONG = [
    ("sandbox.create", {}, "image_id"),
    ("sandbox.create", {"image_id": 3}, "image_id"),
    ("sandbox.create", {"image_id": "img", "colour": "red"}, "colour"),
    ("sandbox.create", {"image_id": "../etc"}, "image_id"),
    ("sandbox.create", {"image_id": "x" * 513}, "image_id"),
    ("sandbox.create", {"image_id": "img", "network": "wifi"}, "network"),
    ("sandbox.create", {"image_id": "img", "memory_bytes": 1}, "memory_bytes"),
    ("sandbox.create", {"image_id": "img", "env": {"A=B": "x"}}, "env"),
    ("sandbox.create", {"image_id": "img", "secrets": {"A": "x\0"}}, "secrets"),
    ("sandbox.exec", {"sandbox_id": "s", "command": []}, "command"),
    ("sandbox.exec", {"sandbox_id": "s", "command": [""], "timeout_s": 0}, "timeout_s"),
    ("sandbox.exec", {"sandbox_id": "s", "command": ["a\0b"]}, "command"),
    ("process.read", {"sandbox_id": "s", "name": "n", "stdout_offset": -1}, "stdout_offset"),
    ("process.signal", {"sandbox_id": "s", "name": "n", "signal": "kill -9"}, "signal"),
    ("event.list", {"limit": 0}, "limit"),
    ("image.create", {"source": ""}, "source"),
]


@pytest.mark.parametrize(("method", "params", "field"), WRONG)
def test_wrong_parameters_are_invalid_and_named(client: Any, method: str, params: dict[str, Any], field: str) -> None:
    assert refused("invalid", client.call, method, params).data["field"] == field


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_refuses_unknown_parameters(client: Any, method: str) -> None:
    refused("invalid", client.call, method, {"no_such_parameter": 1})


FILLED_IN: dict[str, Any] = {
    "sandbox_id": "sbx_none", "disk_bytes": 1 << 30, "command": ["true"], "name": "n", "path": "/f", "data": b"",
    "rows": 24, "cols": 80, "target": "/nowhere",
    "transfer_id": "t", "entry": b"f", "snapshot_id": "snp_none", "position": 1,
}  # fmt: skip
"""A value for each parameter that some method on sandboxes needs."""

GIVEN = ("path", "snapshot_id")
"""Those that are given although they have a default: one of two has to be, as it may be."""


@pytest.mark.parametrize(
    "method",
    sorted(name for name, row in METHODS.items() if row.access is Access.OWNER and "sandbox_id" in row.references),
)
def test_unknown_sandboxes_are_not_found(client: Any, method: str) -> None:
    row = METHODS[method]
    fields = msgspec.structs.fields(row.params)
    params = {field.name: FILLED_IN[field.name] for field in fields if field.required or field.name in GIVEN}
    if row.descriptors:
        with client.with_descriptors(method, **params) as handed:
            refused("not_found", handed.receive)
    else:
        refused("not_found", client.call, method, {**params, "data": ""} if "data" in params else params)


def test_unknown_processes_are_not_found(client: Any, sandbox_id: str) -> None:
    refused("not_found", client.process.get, sandbox_id, "nobody")
    refused("not_found", client.process.get, sandbox_id, new_id("prc"))


def test_sources_that_cannot_be_images(client: Any, shared_daemon: Any, project: str) -> None:
    refused("invalid", client.image.create, "./relative/path")
    refused("invalid", client.image.create, "/no/such/place")
    refused("invalid", client.image.create, f"{project}/hello")
    refused("not_supported", client.image.create, project, provider="nowhere")
    known = {image.image_id for image in client.image.list().images}
    assert set(os.listdir(f"{shared_daemon.state_dir}/images")) <= known


def test_what_no_provider_can_hold_is_refused_before_any_effect(client: Any, image_id: str) -> None:
    before = client.daemon.status().position
    refused("not_supported", client.sandbox.create, image_id, network="bridge")
    refused("not_supported", client.sandbox.create, image_id, provider="docker")
    assert client.daemon.status().position == before
