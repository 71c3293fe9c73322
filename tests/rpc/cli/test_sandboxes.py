"""The command against a real daemon and real sandboxes: images, sandboxes, events, the store."""

import contextlib
import fcntl
import json
import os
import pty
import re
import stat
import subprocess
import termios
from pathlib import Path
from typing import Any

import pytest
from tests.support.printed import document, lines, one

pytestmark = pytest.mark.needs("bwrap")


def documents(done: subprocess.CompletedProcess[bytes]) -> list[Any]:
    return [json.loads(line) for line in lines(done)]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    (root / "hello.sh").write_text("echo hello\n")
    return root


@pytest.fixture(scope="module")
def image(shared_daemon: Any, project: Path) -> str:
    return one(shared_daemon.cli("image", "create", str(project), "--label", "kind=test"))


def test_an_image_of_a_relative_path(shared_daemon: Any, project: Path) -> None:
    image = one(shared_daemon.cli("image", "create", ".", "--clean", cwd=project))
    assert document(shared_daemon.cli("image", "get", image, "--json"))["source"] == str(project)
    assert image in one(shared_daemon.cli("image", "rm", image))


def test_images_are_listed_and_shown(shared_daemon: Any, image: str) -> None:
    assert any(line.startswith(image) for line in lines(shared_daemon.cli("image", "ls")))
    assert any("kind=test" in line for line in lines(shared_daemon.cli("image", "get", image)))
    assert image in [found["image_id"] for found in document(shared_daemon.cli("image", "ls", "--json"))]


def test_an_image_in_use_is_not_removed(shared_daemon: Any, image: str, box: str) -> None:
    done = shared_daemon.cli("image", "rm", image)
    assert done.returncode == 1
    assert b"[in_use]" in done.stderr


def test_ids_go_to_stdout_alone(shared_daemon: Any, image: str) -> None:
    for option in ("--name", "--id"):  # as it was called once
        done = shared_daemon.cli("sandbox", "create", image, option, "mine")
        assert (done.returncode, done.stderr) == (0, b"")
        assert re.fullmatch(rb"sbx_\w{26}\n", done.stdout)
        header, row = lines(shared_daemon.cli("ls"))[:1] + [r for r in lines(shared_daemon.cli("ls")) if "mine" in r]
        assert header.split()[:3] == ["SANDBOX", "NAME", "STATUS"]
        assert row.split()[:3] == [done.stdout.decode().strip(), "mine", "running"]
        assert one(shared_daemon.cli("rm", "mine")) == done.stdout.decode().strip()


def test_what_a_sandbox_was_asked_to_be(shared_daemon: Any, image: str) -> None:
    words = ("--pids", "64", "--disk", "64M", "--env", "A=1", "--label", "x=y", "--secret", "TOKEN", "--json")
    made = document(shared_daemon.cli("create", image, *words, env={"TOKEN": "s3cret"}))
    assert made["spec"]["pids"] == 64
    assert made["spec"]["disk_bytes"] == 64 * 1024**2
    assert made["spec"]["env"] == {"A": "1"}
    assert made["spec"]["labels"] == {"x": "y"}
    assert made["secrets"] == ["TOKEN"]
    shown = shared_daemon.cli("exec", made["sandbox_id"], "--", "sh", "-c", "echo $A $TOKEN")
    assert one(shown) == "1 s3cret"
    shared_daemon.cli("rm", made["sandbox_id"])


def test_sandboxes_are_listed_until_they_end(shared_daemon: Any, image: str, box: str) -> None:
    header, *rows = lines(shared_daemon.cli("ls"))
    assert header.split() == ["SANDBOX", "STATUS", "AGE", "IMAGE", "PROCS"]
    assert any(row.split()[:2] == [box, "running"] and row.split()[3:] == [image, "0"] for row in rows)
    shared_daemon.cli("rm", box)
    assert box not in " ".join(lines(shared_daemon.cli("ls")))
    assert box in [s["sandbox_id"] for s in document(shared_daemon.cli("ls", "--all", "--json"))]


def test_a_sandbox_is_shown_with_its_isolation(shared_daemon: Any, box: str) -> None:
    shown = dict(re.split(r" {2,}", line, maxsplit=1) for line in lines(shared_daemon.cli("get", box)))
    assert shown["sandbox"] == box
    assert shown["isolation"] == "bubblewrap"
    assert document(shared_daemon.cli("sandbox", "get", box, "--json"))["isolation"]["mechanism"] == "bubblewrap"


def test_what_is_not_there_is_refused_in_a_sentence(shared_daemon: Any) -> None:
    done = shared_daemon.cli("get", "sbx_nowhere")
    assert done.returncode == 1
    assert done.stderr.decode().count("\n") == 1
    assert b"[not_found]" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_refusal_in_json_is_a_document(shared_daemon: Any) -> None:
    done = shared_daemon.cli("get", "sbx_nowhere", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["code"] == "not_found"


def test_status_and_capabilities(shared_daemon: Any) -> None:
    assert any(line.startswith("healthy") and line.endswith("yes") for line in lines(shared_daemon.cli("status")))
    assert document(shared_daemon.cli("status", "--json"))["socket"] == shared_daemon.socket
    assert any(line.startswith("local") and "yes" in line for line in lines(shared_daemon.cli("capabilities")))
    providers = document(shared_daemon.cli("capabilities", "--json"))["providers"]
    assert "local" in [provider["provider"] for provider in providers]


def test_the_history_of_a_sandbox(shared_daemon: Any, box: str) -> None:
    shared_daemon.cli("exec", box, "--", "sh", "-c", "exit 3")
    header, *rows = lines(shared_daemon.cli("history", box))
    assert header.startswith(box)
    assert [row.split()[2] for row in rows] == [
        "sandbox.create_requested",
        "sandbox.created",
        "process.launch_requested",
        "process.started",
        "process.exited",
    ]
    assert "exit 3" in rows[-1]
    assert [e["type"] for e in document(shared_daemon.cli("history", box, "--json"))] == [
        row.split()[2] for row in rows
    ]


def test_a_terminal_is_not_overrun(shared_daemon: Any, box: str) -> None:
    shared_daemon.cli("exec", box, "--", "sh", "-c", "true " + "x" * 200)
    for words in (("history", box), ("ps", box, "--all"), ("ls",), ("events", "--sandbox", box), ("image", "ls")):
        shown = on_a_terminal(shared_daemon, *words)
        assert shown
        assert max(len(line) for line in shown) <= 80, words


def on_a_terminal(daemon: Any, *words: str) -> list[str]:
    """The lines of a command whose stdout is a terminal of 80 columns, without their colours."""
    import fcntl
    import os
    import struct
    import termios

    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    attributes = termios.tcgetattr(theirs)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    done = daemon.cli(*words, stdout=theirs, stderr=subprocess.PIPE, capture_output=False)
    os.close(theirs)
    assert done.returncode == 0, done.stderr
    text = b""
    try:
        while piece := os.read(ours, 65536):
            text += piece
    except OSError:  # a terminal without a writer ends so
        pass
    os.close(ours)
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text.decode().splitlines()]


def test_events_after_a_token(shared_daemon: Any, box: str) -> None:
    everything = documents(shared_daemon.cli("events", "--json"))
    assert [event["position"] for event in everything] == list(range(1, len(everything) + 1))
    log_id = document(shared_daemon.cli("status", "--json"))["log_id"]
    last = everything[-1]["position"]
    assert documents(shared_daemon.cli("events", "--after", f"{log_id}:{last - 1}", "--json")) == everything[-1:]
    assert lines(shared_daemon.cli("events", "--after", "now")) == []
    assert {e["type"] for e in documents(shared_daemon.cli("events", "--type", "sandbox.created", "--json"))} == {
        "sandbox.created"
    }


def test_events_since_a_time(shared_daemon: Any, box: str) -> None:
    everything = documents(shared_daemon.cli("events", "--json"))
    created = next(e["position"] for e in everything if e["type"] == "sandbox.created" and e["stream"] == box)
    time = next(e["time"] for e in everything if e["position"] == created)
    first = next(e["position"] for e in everything if e["time"] == time)  # one commit may hold several
    since = documents(shared_daemon.cli("events", "--since", time, "--json"))
    wanted = [event for event in everything if event["position"] >= first]
    assert since[: len(wanted)] == wanted
    assert documents(shared_daemon.cli("events", "--since", "400d", "--json"))[: len(everything)] == everything
    assert not [e for e in documents(shared_daemon.cli("events", "--since", "0s", "--json")) if e in everything]
    there = document(shared_daemon.cli("get", box, "--at", time, "--json"))
    assert (there["position"], there["sandbox"]["status"]) == (created, "running")
    early = shared_daemon.cli("get", box, "--at", "10m")
    assert early.returncode == 1
    assert b"did not exist yet" in early.stderr


def test_events_are_followed_one_document_a_line(shared_daemon: Any, image: str) -> None:
    state = document(shared_daemon.cli("status", "--json"))
    words = ("events", "--after", f"{state['log_id']}:{state['position']}", "--follow", "--json")
    follower = subprocess.Popen([*shared_daemon.command, *words], env=shared_daemon.env, stdout=subprocess.PIPE)
    assert follower.stdout is not None
    try:
        sandbox = one(shared_daemon.cli("create", image))
        shared_daemon.cli("rm", sandbox)
        followed = [json.loads(follower.stdout.readline())["type"] for _ in range(4)]
        assert followed == [
            "sandbox." + word for word in ("create_requested", "created", "terminate_requested", "terminated")
        ]
    finally:
        follower.terminate()
        follower.wait()
        follower.stdout.close()


def test_a_lost_metadata_document_is_rebuilt(shared_daemon: Any, box: str) -> None:
    document_path = Path(shared_daemon.state_dir, "sandboxes", box, "metadata.json")
    shared_daemon.cli("store", "rebuild")
    before = document_path.read_bytes()
    document_path.unlink()
    assert "1 written" in one(shared_daemon.cli("store", "rebuild"))
    assert document_path.read_bytes() == before
    assert stat.S_IMODE(document_path.stat().st_mode) & 0o077 == 0
    assert one(shared_daemon.cli("store", "verify")).startswith("sound")
    assert document(shared_daemon.cli("store", "verify", "--json"))["ok"] is True


def test_any_method_by_name(shared_daemon: Any, box: str) -> None:
    assert document(shared_daemon.cli("rpc", "sandbox.get", json.dumps({"sandbox_id": box})))["sandbox_id"] == box
    assert (
        document(shared_daemon.cli("rpc", "sandbox.get", "-", input=json.dumps({"sandbox_id": box}).encode()))[
            "sandbox_id"
        ]
        == box
    )
    assert document(shared_daemon.cli("rpc", "rpc.discover"))["openrpc"]
    assert shared_daemon.cli("rpc", "sandbox.dance").returncode == 1


def test_a_reader_that_leaves_is_no_disaster(shared_daemon: Any) -> None:
    done = subprocess.run(
        ["sh", "-c", '"$@" events | head -n 1', "sh", *shared_daemon.command],
        env=shared_daemon.env,
        capture_output=True,
    )
    assert done.stdout.count(b"\n") == 1
    assert done.stderr == b""


def test_offline_the_store_is_checked_by_its_own_script(new_daemon: Any, project: Path) -> None:
    daemon = new_daemon()
    daemon.start()
    daemon.cli("image", "create", str(project))
    daemon.stop()
    done = daemon.cli("store", "verify", "--state-dir", daemon.state_dir)
    assert done.returncode == 0, done.stderr
    assert daemon.cli("store", "rebuild", "--state-dir", daemon.state_dir).returncode == 0


def test_the_status_begins_with_what_matters(shared_daemon: Any, box: str) -> None:
    shown = [line.split()[0] for line in lines(shared_daemon.cli("status"))]
    assert shown[:5] == ["healthy", "sandboxes", "processes", "images", "daemon"]
    assert shown.count("leftovers") <= 1


# -- choosing by properties -------------------------------------------------------------------------------------------


@pytest.fixture
def three(shared_daemon: Any, image: str) -> dict[str, str]:
    """Three sandboxes by name, of which two have a label, and one is a fork."""
    shared_daemon.cli("rm", "--all", "--yes")
    made = {}
    for name, label in (("api-1", "team=web"), ("api-2", "team=db"), ("plain", "n=1")):
        made[name] = one(shared_daemon.cli("create", image, "--name", name, "--label", label))
    made["fork"] = one(shared_daemon.cli("fork", "plain", "--label", "team=web"))
    return made


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("", "api-1 api-2 plain fork"),
        ("--label team=web", "api-1 fork"),
        ("--label team=web --label n=1", "fork"),
        ("--filter label=team", "api-1 api-2 fork"),
        ("--filter label=team=db --filter name=plain", ""),
        ("-f name=api-*", "api-1 api-2"),
        ("-f name=api-1 -f name=plain", "api-1 plain"),
        ("--filter status=running --filter provider=local", "api-1 api-2 plain fork"),
        ("--filter state=suspended", ""),
        ("--filter parent=PLAIN", "fork"),
        ("--filter parent=plain", "fork"),
        ("--filter image=IMAGE", "api-1 api-2 plain fork"),
    ],
)
def test_sandboxes_are_listed_by_their_properties(
    shared_daemon: Any, image: str, three: dict[str, str], words: str, found: str
) -> None:
    words = words.replace("PLAIN", three["plain"]).replace("IMAGE", image)
    assert lines(shared_daemon.cli("ls", "-q", *words.split())) == [three[name] for name in found.split()]
    assert [s["sandbox_id"] for s in document(shared_daemon.cli("ls", "--json", *words.split()))] == [
        three[name] for name in found.split()
    ]


def test_the_list_shows_labels_and_parents(shared_daemon: Any, image: str, three: dict[str, str]) -> None:
    header, *rows = lines(shared_daemon.cli("ls"))
    assert header.split() == ["SANDBOX", "NAME", "STATUS", "AGE", "LABELS", "IMAGE", "PARENT", "PROCS"]
    (row,) = [row.split() for row in rows if row.startswith(three["fork"])]
    assert row[3:] == ["n=1,team=web", image, "plain", "0"]
    shared_daemon.cli("image", "tag", image, "py:3.12")
    assert all(" py:3.12 " in row and image not in row for row in lines(shared_daemon.cli("ls"))[1:])
    shared_daemon.cli("image", "untag", "py:3.12")


def test_a_filter_that_nothing_could_match_is_refused(shared_daemon: Any) -> None:
    for wrong, hint in (
        ("colour=red", b"status, state, name"),
        ("status=up", b"creating, running"),
        ("name", b"=VALUE"),
        ("name=", b"maybe a variable is not set"),
    ):
        done = shared_daemon.cli("ls", "--filter", wrong)
        assert done.returncode == 2
        assert hint in b" ".join(done.stderr.split())


def test_several_sandboxes_end_at_once_by_label_and_the_rest_stays(shared_daemon: Any, three: dict[str, str]) -> None:
    done = shared_daemon.cli("rm", "--label", "team=web", "--yes")
    assert lines(done) == [three["api-1"], three["fork"]]
    assert done.stderr == b"sandkeep: terminating 2 sandboxes\n"
    assert lines(shared_daemon.cli("ls", "-q")) == [three["api-2"], three["plain"]]
    assert lines(shared_daemon.cli("rm", "--all", "--yes")) == [three["api-2"], three["plain"]]
    done = shared_daemon.cli("rm", "--all", "--yes")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"sandkeep: terminating no sandboxes\n")
    ended = lines(shared_daemon.cli("ls", "-q", "--filter", "status=stopped", "--label", "team=db"))
    assert three["api-2"] in ended


def test_only_ones_own_sandboxes_end_at_once(shared_daemon: Any, three: dict[str, str]) -> None:
    with shared_daemon.connect() as client:
        mine = client.daemon.status().owner
    assert lines(shared_daemon.cli("ls", "-q", "--filter", f"owner={mine}")) == [*three.values()]
    assert lines(shared_daemon.cli("rm", "--filter", "owner=uid:4711", "--yes")) == []
    assert lines(shared_daemon.cli("ls", "-q")) == [*three.values()]


def test_on_a_terminal_it_asks_first(shared_daemon: Any, three: dict[str, str]) -> None:
    for typed, code, printed, left in (
        (b"n\n", 1, b"nothing was done", [*three.values()]),
        (b"\4", 1, b"nothing was done", [*three.values()]),
        (b"\3", 130, b"", [*three.values()]),
        (b"y\n", 0, b"terminating 4 sandboxes", []),
    ):
        ours, its = pty.openpty()
        command = [*shared_daemon.command, "rm", "--all"]
        with subprocess.Popen(
            command, env=shared_daemon.env, stdin=its, stdout=its, stderr=its, preexec_fn=_take_terminal
        ) as process:
            os.close(its)
            shown = b""
            while b"[y/N]:" not in shown:
                shown += os.read(ours, 1024)
            assert b"Terminate 4 sandboxes? [y/N]:" in shown
            os.write(ours, typed)
            with contextlib.suppress(OSError):  # the end of a terminal without a writer
                while chunk := os.read(ours, 1024):
                    shown += chunk
        os.close(ours)
        assert process.returncode == code, shown
        assert printed in shown
        assert lines(shared_daemon.cli("ls", "-q")) == left


def _take_terminal() -> None:
    """Make standard input the controlling terminal of this process, whose Ctrl-C it gets."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.parametrize(
    "words", [["rm", "--all"], ["rm", "--label", "team=web"], ["rm", "--filter", "name=plain"], ["prune", "--all"]]
)
def test_without_a_terminal_it_must_be_told_yes(shared_daemon: Any, three: dict[str, str], words: list[str]) -> None:
    done = shared_daemon.cli(*words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"no terminal to ask for confirmation on: add --yes" in done.stderr
    assert lines(shared_daemon.cli("ls", "-q")) == [*three.values()]
    assert shared_daemon.cli("prune", "--dry-run").returncode == 0


def test_one_that_is_refused_does_not_keep_the_others(shared_daemon: Any, three: dict[str, str]) -> None:
    done = shared_daemon.cli("rm", "api-1", "nowhere", "plain", "nobody")
    assert done.returncode == 1
    assert done.stdout.decode().split() == [three["api-1"], three["plain"]]
    assert re.findall(rb"nowhere|nobody", done.stderr) == [b"nowhere", b"nobody"]


@pytest.mark.parametrize("words", [(), ("tests", "--all"), ("tests", "--label", "a=b")])
def test_it_says_which_sandboxes_may_be_named_to_end(shared_daemon: Any, words: tuple[str, ...]) -> None:
    done = shared_daemon.cli("rm", *words)
    assert done.returncode == 2
    assert b"give SANDBOX..., or --all, --label or --filter" in done.stderr
