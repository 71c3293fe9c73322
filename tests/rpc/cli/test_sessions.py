"""`sandkeep session`, as it is typed, and other commands with a session's id, against a real daemon."""

import io
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.support.expect import until
from tests.support.printed import said

pytestmark = pytest.mark.needs("bwrap")

UUID_CHARACTERS = 36


def told(done: "subprocess.CompletedProcess[bytes]") -> str:
    """Its words on stderr."""
    said(done)
    return str(done.stderr.decode())


def test_an_id_alone_goes_to_stdout_and_stderr_says_where_it_came_from(cli: Any, image: str) -> None:
    made = cli("session", "ensure", "pinned", "--image", image, "--memory", "64M", "--label", "team=blue")
    assert made.stdout == b"pinned\n"
    assert told(made) == "sandkeep: session pinned was created, with the files of its image\n"
    assert told(cli("session", "ensure", "pinned")) == "sandkeep: session pinned was found ready\n"
    ignored = told(cli("session", "ensure", "pinned", "--fresh"))
    assert "--fresh had no effect: first end the sandbox with `sandkeep session close pinned`" in ignored
    document = json.loads(said(cli("session", "get", "pinned", "--json")))
    assert document["spec"]["sandbox"]["memory_bytes"] == 64 << 20
    assert document["spec"]["sandbox"]["labels"] == {"team": "blue"}
    shown = [line.split() for line in said(cli("session", "get", "pinned")).splitlines()]
    for name, value in (("session", "pinned"), ("status", "ready"), ("labels", "team=blue"), ("image", image)):
        assert [name, value] in shown
    assert said(cli("session", "close", "pinned", "--no-snapshot")) == "pinned"
    assert told(cli("session", "ensure", "pinned")) == (
        "sandkeep: session pinned was brought back, with the files of its image\n"
    )


def test_without_an_id_it_gets_one(cli: Any, image: str) -> None:
    made = said(cli("session", "ensure", "--image", image))
    assert len(made) == UUID_CHARACTERS
    answer = json.loads(said(cli("session", "ensure", made, "--json")))
    assert (answer["created"], answer["session"]["session_id"]) == (False, made)


def test_its_life_as_it_is_typed(cli: Any, image: str) -> None:
    said(cli("session", "ensure", "life", "--image", image))
    said(cli("exec", "life", "--", "sh", "-c", "echo mine >file"))
    assert said(cli("session", "close", "life")) == "life"
    [snapshot] = json.loads(said(cli("session", "get", "life", "--json")))["snapshot_ids"]
    revived = cli("exec", "life", "--", "cat", "file")
    assert (revived.returncode, revived.stdout) == (0, b"mine\n")
    note = f"sandkeep: session life was brought back, with the files of snapshot {snapshot}\n"
    assert revived.stderr.decode() == note
    assert cli("exec", "life", "--", "true").stderr == b""
    fresh = cli("session", "close", "life"), cli("session", "ensure", "life", "--fresh")
    assert told(fresh[1]).endswith("with the files of its image\n")
    assert cli("exec", "life", "--", "test", "-e", "file").returncode == 1
    said(cli("session", "close", "life"))
    restored = cli("session", "ensure", "life", "--restore", snapshot)
    assert snapshot in told(restored)
    assert said(cli("exec", "life", "--", "cat", "file")) == "mine"
    lines = said(cli("session", "history", "life")).splitlines()
    types = [line.split()[2] for line in lines]
    assert types == [
        "session.start_requested", "session.started", "session.stop_requested", "session.stopped",
    ] * 3 + ["session.start_requested", "session.started"]  # fmt: skip
    assert f"to {snapshot}" in lines[3]
    assert "for process.launch" in lines[4]
    events = json.loads(said(cli("session", "history", "life", "--json")))
    assert [event["type"] for event in events] == types


@pytest.mark.parametrize(
    "words",
    [("cp", "back:file", "-"), ("snapshot", "create", "back"), ("run", "back", "work", "--", "true")],
    ids=["cp", "snapshot", "run"],
)
def test_other_commands_say_that_they_brought_it_back(cli: Any, image: str, words: tuple[str, ...]) -> None:
    said(cli("session", "ensure", "back", "--image", image))
    said(cli("exec", "back", "--", "touch", "file"))
    said(cli("session", "close", "back"))
    assert "sandkeep: session back was brought back, with the files of snapshot snp_" in told(cli(*words))


def test_sandboxes_of_sessions_end_by_their_sessions(cli: Any, image: str) -> None:
    for session in ("kept", "other"):
        said(cli("session", "ensure", session, "--image", image, "--label", f"of={session}", "--label", "run=9"))
    box, its = said(cli("create", image, "--label", "run=9")), said(cli("ls", "-q", "--label", "of=kept"))
    done = cli("rm", "--label", "run=9", "--yes")
    assert said(done) == box
    left, ending = told(done).splitlines()
    assert left.startswith(
        "sandkeep: 2 sandboxes of sessions not included: end with `sandkeep session close SESSION...`"
    )
    assert ending == "sandkeep: terminating 1 sandbox"
    for choice in ("--filter=label=of=kept", "--label=of=kept"):
        done = cli("rm", choice, "--yes")
        assert said(done) == ""
        assert told(done).splitlines() == [
            "sandkeep: 1 sandbox of a session not included: end with `sandkeep session close kept`",
            "sandkeep: terminating no sandboxes",
        ]
    assert its not in said(cli("rm", "--all", "--yes"))
    assert said(cli("rm", its)) == its
    assert said(cli("rm", "other"))


def test_a_list_shows_times_and_what_is_left(cli: Any, image: str) -> None:
    limits = ("--idle-timeout", "300", "--max-lifetime", "7200")
    said(cli("session", "ensure", "timed", "--image", image, *limits))
    said(cli("session", "ensure", "endless", "--image", image))
    titles, *rows = [line.split() for line in said(cli("session", "ls")).splitlines()]
    assert titles == ["SESSION", "STATUS", "SANDBOX", "IDLE", "LEFT", "SNAPSHOT"]
    by_name = {row[0]: row for row in rows}
    idle, left = by_name["timed"][3:5]
    assert idle.endswith("/5m")
    assert left == "1h"
    assert by_name["endless"][4] == "-"
    said(cli("session", "close", "endless"))
    assert "endless" not in said(cli("session", "ls"))
    [row] = [line.split() for line in said(cli("session", "ls", "--all")).splitlines() if line.startswith("endless ")]
    assert row[1] == "terminated"
    assert row[5].startswith("snp_")


def test_a_heartbeat_is_seen_and_brings_nothing_back(cli: Any, image: str) -> None:
    said(cli("session", "ensure", "alive", "--image", image))
    assert said(cli("session", "heartbeat", "alive")) == "alive"
    assert "heartbeat" in said(cli("session", "get", "alive"))
    said(cli("session", "close", "alive", "--no-snapshot"))
    said(cli("session", "heartbeat", "alive"))
    assert json.loads(said(cli("session", "get", "alive", "--json")))["status"] == "terminated"


def test_limits_of_time_end_it_and_it_says_so(cli: Any, image: str) -> None:
    said(cli("session", "ensure", "short", "--image", image, "--idle-timeout", "1"))
    until(lambda: "expired (idle_timeout)" in said(cli("session", "get", "short")))
    assert "idle timeout" in said(cli("session", "history", "short"))


# -- export -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported(cli: Any, image: str) -> str:
    said(cli("session", "ensure", "export", "--image", image))
    script = "mkdir -p out/deep; echo 42 >out/deep/answer; head -c 3000000 /dev/urandom >data; ln -s data link"
    said(cli("exec", "export", "--", "sh", "-c", script))
    return "export"


@pytest.mark.parametrize("path", ["data", "link"])
def test_a_file_is_exported_as_it_is(cli: Any, exported: str, tmp_path: Path, path: str) -> None:
    content = cli("exec", exported, "--", "cat", "data").stdout
    assert said(cli("session", "export", exported, path, cwd=tmp_path)) == f"./{path}"
    assert (tmp_path / path).read_bytes() == content
    streamed = cli("session", "export", exported, f"/workspace/{path}", "-o", "-")
    assert (streamed.returncode, streamed.stdout == content) == (0, True)


def test_a_directory_is_exported_as_an_archive(cli: Any, exported: str, tmp_path: Path) -> None:
    assert said(cli("session", "export", exported, "out", cwd=tmp_path)) == "./out.tar.gz"
    for content in (
        (tmp_path / "out.tar.gz").read_bytes(),
        cli("session", "export", exported, "out", "-o", "-").stdout,
    ):
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
            answer = archive.extractfile("./out/deep/answer")
            assert answer is not None
            assert answer.read() == b"42\n"
    document = json.loads(said(cli("session", "export", exported, "out", "-o", "a.tgz", "--json", cwd=tmp_path)))
    assert document == {"path": str(tmp_path / "a.tgz"), "size_bytes": (tmp_path / "a.tgz").stat().st_size}


def test_a_failed_export_leaves_the_old_file(cli: Any, exported: str, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    failed = cli("session", "export", exported, "nothing", "-o", "old", cwd=tmp_path)
    assert failed.returncode == 1
    assert b"[not_found]" in failed.stderr
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("old", "old")]
    assert b"--output" in cli("session", "export", exported, ".").stderr
    missing = cli("session", "export", exported, "data", "-o", str(tmp_path / "no" / "file"))
    assert (missing.returncode, b"[not_found]" in missing.stderr) == (1, True)


# -- refusals and completion ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("ensure", "unmade"), 1, b"[invalid]"),
        (("ensure", "unmade", "--image", "/etc"), 1, b"is a path"),
        (("ensure", "unmade", "--fresh", "--restore", "snp_x"), 2, b"cannot be combined"),
        (("get", "unmade"), 1, b"[not_found]"),
        (("close", "unmade"), 1, b"[not_found]"),
        (("close",), 2, b"Missing argument"),
    ],
)
def test_refusals(cli: Any, image: str, words: tuple[str, ...], code: int, message: bytes) -> None:
    done = cli("session", *words)
    assert (done.returncode, done.stdout) == (code, b"")
    assert message in done.stderr


def test_ids_complete_also_of_sessions_that_have_ended(cli: Any, image: str) -> None:
    said(cli("session", "ensure", "complete-me", "--image", image))
    said(cli("session", "close", "complete-me"))
    for line in ("sandkeep session get comp", "sandkeep session export comp", "sandkeep session ensure comp"):
        found = until(lambda line=line: cli(line, "", env={"_SANDKEEP_COMPLETE": "bash"}).stdout)
        assert found == b"word\tcomplete-me\n"
    line = "sandkeep session ensure x --image "
    images = until(lambda: cli(line, "", env={"_SANDKEEP_COMPLETE": "bash"}).stdout)
    assert f"word\t{image}\n".encode() in images


# -- stats ------------------------------------------------------------------------------------------------------------


@pytest.mark.needs("root")
def test_stats_show_sessions_with_the_time_that_is_left(cli: Any, image: str) -> None:
    said(cli("session", "ensure", "later", "--image", image, "--max-lifetime", "7200"))
    said(cli("session", "ensure", "sooner", "--image", image, "--max-lifetime", "3600"))
    said(cli("create", image, "--name", "own", "--max-lifetime", "5400"))
    said(cli("create", image, "--name", "never"))
    titles, *rows = [line.split() for line in said(cli("stats", "--once", "--sort", "left")).splitlines()]
    assert titles[-1] == "LEFT"
    named = [row for row in rows if row[0] in ("later", "sooner", "own", "never")]
    assert [row[0] for row in named] == ["sooner", "own", "later", "never"]
    assert [row[-1] for row in named] == ["59m", "1h", "1h", "-"]
    found = {one["name"]: one for one in json.loads(said(cli("stats", "--json")))}
    assert (found["sooner"]["session_id"], found["own"]["session_id"]) == ("sooner", None)
    said(cli("rm", "own", "never"))
