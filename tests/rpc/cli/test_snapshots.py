"""`sandkeep snapshot` and `sandkeep fork`, as they are typed, against a real daemon."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.expect import until
from tests.support.printed import said
from tests.support.users import let_in

pytestmark = pytest.mark.needs("bwrap")


@pytest.fixture(scope="module")
def image(cli: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    source = tmp_path_factory.mktemp("source")
    let_in(source)
    (source / "file").write_text("from the image\n")
    return said(cli("image", "create", str(source)))


def told(done: "subprocess.CompletedProcess[bytes]", code: str, exit_code: int = 1) -> str:
    assert (done.returncode, done.stdout) == (exit_code, b"")
    message = str(done.stderr.decode())
    assert f"[{code}]" in message
    return message


def test_an_id_alone_goes_to_stdout(cli: Any, box: str) -> None:
    snapshot = said(cli("snapshot", "create", box, "--name", "first", "--label", "team=blue"))
    assert snapshot.startswith("snp_")
    assert "\n" not in snapshot
    shown = said(cli("snapshot", "get", snapshot))
    for words in ("name        first", "status      ready", "labels      team=blue", "frozen for"):
        assert words in shown
    assert snapshot in said(cli("snapshot", "ls", box))
    assert snapshot not in said(cli("snapshot", "ls", "--name", "other"))
    [document] = json.loads(said(cli("snapshot", "ls", "--label", "team=blue", "--json")))
    assert document["snapshot_id"] == snapshot
    assert said(cli("snapshot", "rm", snapshot)) == snapshot
    assert snapshot not in said(cli("snapshot", "ls"))
    assert "deleted" in said(cli("snapshot", "ls", "--all"))


def test_there_and_back(cli: Any, box: str, tmp_path: Path) -> None:
    said(cli("exec", box, "--", "sh", "-c", "echo work >work; mkdir out; echo no >out/no"))
    snapshot = said(cli("snapshot", "create", box, "--exclude", "out", "--zstd"))
    said(cli("snapshot", "export", snapshot, "work.tar.zst", cwd=tmp_path))
    listed = subprocess.run(["tar", "--zstd", "-tf", tmp_path / "work.tar.zst"], capture_output=True, check=True)
    assert listed.stdout.decode().split() == ["./", "file", "work"]
    piped = cli("snapshot", "export", snapshot, "-")
    assert piped.stdout == (tmp_path / "work.tar.zst").read_bytes()
    theirs = said(cli("snapshot", "import", "work.tar.zst", "--name", "theirs", cwd=tmp_path))
    made = said(cli("snapshot", "restore", theirs, "--name", "restored", "--env", "A=b", "--label", "x=y"))
    assert said(cli("exec", "restored", "--", "pwd")) == said(cli("exec", made, "--", "pwd"))
    assert said(cli("exec", made, "--", "sh", "-c", "cat work; echo $A; ls")) == "work\nb\nfile\nwork"
    assert "restored from" in said(cli("get", made))
    image = said(cli("snapshot", "promote", theirs))
    assert said(cli("image", "get", image, "--json"))
    said(cli("rm", made))
    said(cli("image", "rm", image))


def test_over_a_sandboxs_own_files(cli: Any, box: str) -> None:
    snapshot = said(cli("snapshot", "create", box))
    said(cli("exec", box, "--", "rm", "file"))
    said(cli("run", box, "sleeper", "--detach", "--", "sleep", "1000"))
    assert "sleeper" in told(cli("snapshot", "restore", snapshot, "--over", box), "in_use")
    assert said(cli("snapshot", "restore", snapshot, "--over", box, "--end-processes")) == box
    assert said(cli("exec", box, "--", "cat", "file")) == "from the image"
    wrong = cli("snapshot", "restore", snapshot, "--over", box, "--name", "other")
    assert (wrong.returncode, b"--over" in wrong.stderr) == (2, True)
    history = said(cli("history", box))
    assert "sandbox.restored" in history
    assert "snapshot.stored" in history


def test_back_in_time(cli: Any, box: str) -> None:
    """By a position or a time of the history, where what was kept has a sign; and what was the case then."""
    kept = said(cli("snapshot", "create", box, "--name", "before"))
    gone = said(cli("snapshot", "create", box))
    said(cli("snapshot", "rm", gone))
    said(cli("exec", box, "--", "rm", "file"))
    rows = said(cli("history", box)).splitlines()
    [filled] = [row.split() for row in rows if "◆" in row]
    [empty] = [row.split() for row in rows if "◇" in row]
    assert filled[3:6] == ["snapshot.stored", kept, "before"]
    assert empty[3:6] == ["snapshot.stored", gone, "deleted"]
    recorded = json.loads(said(cli("history", box, "--json")))
    moments = [event["moment"] for event in recorded if "moment" in event]
    assert [(m["source_id"], m["name"], m["status"]) for m in moments] == [
        (kept, "before", "ready"), (gone, None, "deleted"),
    ]  # fmt: skip
    for at in (filled[0], empty[0], recorded[-1]["time"], recorded[-1]["time"].replace("T", " ")):
        ran = cli("restore", box, "--at", at, "--label", "x=y")
        made = said(ran)
        assert f"from snapshot {kept} (before), of position {filled[0]}\n" in ran.stderr.decode()
        assert said(cli("exec", made, "--", "cat", "file")) == "from the image"
        said(cli("rm", made))
    exact = cli("restore", box, "--at", filled[0], "--name", "mine")
    assert "nothing happened" in exact.stderr.decode()
    assert said(cli("exec", "mine", "--", "cat", "file")) == said(cli("exec", said(exact), "--", "cat", "file"))
    document = json.loads(said(cli("restore", box, "--at", empty[0], "--json")))
    assert document["moment"]["source_id"] == kept
    assert document["events_between"] == 2
    said(cli("rm", "mine", document["sandbox"]["sandbox_id"]))
    shown = said(cli("get", box, "--at", filled[0]))
    assert ["snapshots", kept, "ready", "before"] in [line.split() for line in shown.splitlines()]
    assert gone not in shown
    assert json.loads(said(cli("get", box, "--at", filled[0], "--json")))["sandbox"]["sandbox_id"] == box


def test_no_moment(cli: Any, box: str) -> None:
    told(cli("restore", box, "--at", "1000000"), "invalid")
    told(cli("restore", box, "--at", "log_other:1"), "wrong_log")
    told(cli("restore", box, "--at", "2226-01-01T00:00:00Z"), "invalid")
    told(cli("restore", box, "--at", "2001-01-01 00:00:00+01:00"), "snapshot_missing")
    told(cli("get", box, "--at", "1"), "not_found")
    told(cli("get", box, "--at", "2001-01-01T00:00:00Z"), "not_found")
    for words in (("restore", box), ("restore", box, "--at", "noon"), ("get", box, "--at", "noon")):
        assert cli(*words).returncode == 2, words


def test_forks(cli: Any, box: str) -> None:
    made = said(cli("fork", box, "--count", "2")).split()
    assert len(made) == 2
    for one in made:
        assert f"forked from  {box}" in said(cli("get", one))
        assert "forked from" in said(cli("history", one))
    [document] = [json.loads(said(cli("fork", box, "--json")))]
    named = said(cli("fork", box, "--name", "try-1", "--name", "try-2")).split()
    assert [json.loads(said(cli("get", name, "--json")))["sandbox_id"] for name in ("try-1", "try-2")] == named
    assert cli("fork", box, "--count", "3", "--name", "try-3").returncode == 2
    said(cli("rm", *made, *named, document["sandboxes"][0]["sandbox_id"]))
    assert "frozen for" in said(cli("history", box))


def test_what_is_refused(cli: Any, box: str, tmp_path: Path) -> None:
    told(cli("snapshot", "get", "snp_none"), "not_found")
    assert "FILESYSTEM_SNAPSHOT_BUCKET" in told(cli("snapshot", "create", box, "--bucket"), "not_configured")
    (tmp_path / "bad").write_bytes(b"no archive" * 100)
    told(cli("snapshot", "import", str(tmp_path / "bad")), "snapshot_corrupt")
    told(cli("snapshot", "import", str(tmp_path / "not")), "not_found")
    told(cli("fork", "never-was"), "not_found")
    snapshot = said(cli("snapshot", "create", box))
    said(cli("snapshot", "rm", snapshot))
    told(cli("snapshot", "restore", snapshot), "snapshot_not_ready")


def test_garbage(cli: Any, shared_daemon: Any) -> None:
    orphan = Path(shared_daemon.state_dir) / "archives" / "x" / "snp_01aaaaaaaaaaaaaaaaaaaaaaaa.tar"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"x" * 2048)
    done = cli("snapshot", "gc", "--dry-run")
    assert (said(done), orphan.exists()) == (str(orphan), True)
    assert b"would be freed" in done.stderr
    assert said(cli("snapshot", "gc")) == str(orphan)
    assert not os.path.exists(orphan)


def test_names_complete(cli: Any, box: str, shared_daemon: Any) -> None:
    snapshot = said(cli("snapshot", "create", box, "--name", "done"))
    line = f"sandkeep --socket {shared_daemon.socket} snapshot get snp_"
    found = until(lambda: cli(line, env={"_SANDKEEP_COMPLETE": "fish"}).stdout)
    assert f"word\t{snapshot}\tdone, " in found.decode()
