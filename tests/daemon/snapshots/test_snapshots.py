"""Snapshots of local sandboxes, with a real daemon: what is kept, restored, moved, deleted and refused."""

import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.expect import refused, until
from tests.support.snapshots import (
    archive,
    exported,
    imported,
    keep_settled,
    layers,
    names,
    on_both_deep,
    paths,
    sh,
    tree,
    write_mapped,
)
from tests.support.users import as_user, let_in

from sandkeep import archives

pytestmark = pytest.mark.needs("bwrap")


@pytest.fixture(scope="module")
def client(keeping_daemon: Any) -> Any:
    with keeping_daemon.connect() as client:
        yield client


@pytest.fixture(scope="module")
def image(client: Any, image_of: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    source = tmp_path_factory.mktemp("source")
    let_in(source)
    (source / "sub").mkdir()
    (source / "sub" / "inner").write_text("inner\n")
    (source / "gone").mkdir()
    (source / "gone" / "old").write_text("old\n")
    (source / "file").write_text("from the image\n")
    return str(client.image.create(str(source), **image_of).image_id)


CHANGE = """
rm file; echo new >new; rm -r gone; mkdir gone; echo y >gone/young; ln -s /etc/passwd link; mkfifo pipe
mkdir -m 700 closed; echo s >closed/secret; chmod 000 closed
"""


# -- what is kept -----------------------------------------------------------------------------------------------------


@on_both_deep
def test_a_restored_sandbox_has_exactly_the_files_of_the_snapshot(client: Any, box: str, provider: str) -> None:
    sh(client, box, CHANGE)
    sh(
        client,
        box,
        "chmod 711 new; ln new hard; truncate -s 1M sparse; printf x >>sparse; touch -d 2001-02-03 sub/inner",
    )
    before = tree(client, box)
    snapshot = client.snapshot.create(box, name="work", labels={"team": "blue"})
    assert (snapshot.status, snapshot.kind, snapshot.name, snapshot.labels) == (
        "ready",
        "full",
        "work",
        {"team": "blue"},
    )
    assert snapshot.pause_ms > 0
    sh(client, box, "echo later >>new; rm -rf sub")
    made = client.snapshot.restore(snapshot.snapshot_id)
    assert made.restored_from == snapshot.snapshot_id
    assert tree(client, made.sandbox_id) == before
    assert (
        sh(client, made.sandbox_id, "stat -c %h hard; date -r sub/inner +%F; chmod 700 closed; cat closed/secret")
        == "2\n2001-02-03\ns\n"
    )
    if provider == "local":  # a Docker engine writes holes out
        assert int(sh(client, made.sandbox_id, "stat -c %b sparse")) < 64
    client.sandbox.terminate(made.sandbox_id)


def test_an_archive_is_one_that_any_tar_reads(client: Any, box: str, tmp_path: Path) -> None:
    sh(client, box, "echo kept >kept")
    for options, suffix in (({}, "tar.gz"), ({"format": "tar.zst"}, "tar.zst")):
        snapshot = client.snapshot.create(box, **options)
        assert (snapshot.format, snapshot.places[0].where) == (suffix, "state")
        path = Path(snapshot.places[0].uri)
        assert path.parent.name == box
        assert path.name == f"{snapshot.snapshot_id}.{suffix}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert f"sha256:{_sha256(path)}" == snapshot.digest
        unpack = ["tar", "--extract", "--file", str(path), "--directory", str(tmp_path), "--no-same-owner"]
        subprocess.run([*unpack, *(["--zstd"] if suffix == "tar.zst" else [])], check=True)
        assert (tmp_path / "kept").read_text() == "kept\n"
        listed = subprocess.run(["tar", "-tf", path], capture_output=True, check=True).stdout.split()
        assert len(listed) == snapshot.member_count


def _sha256(path: Path) -> str:
    return subprocess.run(["sha256sum", path], capture_output=True, check=True).stdout.split()[0].decode()


def test_what_is_not_kept_as_it_was_is_counted(client: Any, box: str) -> None:
    sh(client, box, "touch plain special; chmod 4755 special")
    assert client.snapshot.create(box).remarks == {"set-uid": 1}


@pytest.mark.parametrize("path", [".", "./", "/workspace", "/workspace/"])
def test_not_everything_can_be_left_out(client: Any, box: str, path: str) -> None:
    assert "everything" in refused("invalid", lambda: client.snapshot.create(box, exclude=[path])).message


def test_only_what_is_asked_for_is_taken(client: Any, box: str) -> None:
    sh(client, box, "mkdir -p a/b c; echo 1 >a/1; echo 2 >a/b/2; echo 3 >c/3")
    snapshot = client.snapshot.create(box, include=["a", "/workspace/sub"], exclude=["a/b"])
    assert names(exported(client, snapshot.snapshot_id)) == [".", "a", "a/1", "sub", "sub/inner"]
    refused("not_found", lambda: client.snapshot.create(box, include=["nothing"]))
    refused("invalid", lambda: client.snapshot.create(box, exclude=["../.."]))
    sh(client, box, "mkdir -p /tmp/d; echo 4 >/tmp/d/4")
    outside = client.snapshot.create(box, include=["/tmp/d"])
    assert "tmp/d/4" in names(exported(client, outside.snapshot_id))
    refused("invalid", lambda: client.snapshot.create(box, include=["/tmp/d"], exclude=["/tmp/d/4"]))


@on_both_deep
def test_processes_stand_still_meanwhile_and_go_on(client: Any, box: str) -> None:
    """A program that writes to two files in turn never has them differ by more than one, nor does a snapshot."""
    writer = "i=0; while :; do i=$((i+1)); echo $i >>one; echo $i >>two; done"
    client.process.launch(box, ["sh", "-c", writer], name="writer")
    until(lambda: "two" in sh(client, box, "ls"))
    for _ in range(3):
        snapshot = client.snapshot.create(box)
        made = client.snapshot.restore(snapshot.snapshot_id).sandbox_id
        one, two = (int(count) for count in sh(client, made, "wc -l <one; wc -l <two").split())
        assert 0 <= one - two <= 1
        client.sandbox.terminate(made)
    before = sh(client, box, "wc -l <one")
    until(lambda: sh(client, box, "wc -l <one") != before)
    client.process.signal(box, "writer", "KILL")


def test_a_sandbox_that_failed_still_has_files(client: Any, image: str) -> None:
    box = client.sandbox.create(image).sandbox_id
    sh(client, box, "echo saved >saved")
    os.kill(client.sandbox.history(box).events[1].data["handle"]["first"]["pid"], 9)
    until(lambda: client.sandbox.get(box).status == "failed")
    snapshot = client.snapshot.create(box)
    assert snapshot.pause_ms is None
    assert "saved" in names(exported(client, snapshot.snapshot_id))
    client.sandbox.terminate(box)
    assert "has ended" in refused("not_ready", lambda: client.snapshot.create(box)).message
    restored = client.snapshot.restore(snapshot.snapshot_id).sandbox_id
    assert sh(client, restored, "cat saved") == "saved\n"
    client.sandbox.terminate(restored)


# -- increments -------------------------------------------------------------------------------------------------------


@on_both_deep
def test_what_is_gone_stays_gone_after_two_increments_and_an_export(
    client: Any, box: str, image: str, provider: str
) -> None:
    sh(client, box, "mkdir d; echo 1 >d/1; echo 2 >d/2; echo keep >keep; mkdir -p deep/er; echo x >deep/er/x")
    full = client.snapshot.create(box)
    sh(client, box, "rm d/1; rm -r gone; mkdir gone; echo young >gone/young; rm file; rm -r deep/er")
    first = client.snapshot.create(box, incremental=True)
    assert (first.kind, first.parent_id) == ("incremental", full.snapshot_id)
    sh(
        client,
        box,
        "rm -r d; mkdir d; echo 3 >d/3; rm keep; mkdir keep; echo in >keep/in; echo f >deep/f; mv gone went",
    )
    before = tree(client, box)
    second = client.snapshot.create(box, incremental=True)
    assert second.parent_id == first.snapshot_id
    restored = client.snapshot.restore(second.snapshot_id).sandbox_id
    assert tree(client, restored) == before
    whole = exported(client, second.snapshot_id)
    assert not [name for name in names(whole) if ".wh." in name]
    again = imported(client, whole, image_id=None if provider == "local" else image)
    back = client.snapshot.restore(again.snapshot_id).sandbox_id
    assert tree(client, back) == before
    middle = client.snapshot.restore(first.snapshot_id).sandbox_id
    assert paths(client, middle) == {"d", "d/2", "keep", "gone", "gone/young", "deep", "sub", "sub/inner"}
    for made in (restored, back, middle):
        client.sandbox.terminate(made)


def test_an_increment_holds_what_changed_and_no_more(client: Any, box: str) -> None:
    sh(client, box, "mkdir many; cd many; seq 300 | xargs touch")
    keep_settled(client, box)
    sh(client, box, "echo 1 >many/7; chmod 600 many/8; mv many/9 many/nine")
    found = client.snapshot.create(box, incremental=True)
    listed = subprocess.run(["tar", "-tf", found.places[0].uri], capture_output=True, check=True).stdout.decode()
    assert sorted(listed.split()) == ["./", "many/", "many/.wh.9", "many/7", "many/8", "many/nine"]


def test_an_increment_keeps_the_modes_of_directories_in_which_only_a_file_changed(client: Any, box: str) -> None:
    sh(client, box, "mkdir -m 700 closed; echo 1 >closed/file")
    keep_settled(client, box)
    sh(client, box, "echo 2 >>closed/file")
    made = client.snapshot.create(box, incremental=True)
    restored = client.snapshot.restore(made.snapshot_id).sandbox_id
    assert sh(client, restored, "stat -c %a closed; cat closed/file") == "700\n1\n2\n"
    client.sandbox.terminate(restored)


def test_what_is_written_in_memory_is_not_missed(client: Any, box: str) -> None:
    """The kernel gives the file no other time for it."""
    write = write_mapped(client, box)
    write(b"1")
    client.snapshot.create(box)
    for letter in (b"2", b"3"):
        until(lambda: client.snapshot.create(box, incremental=True).member_count == 2)  # it alone may still change
        write(letter)
        snapshot = client.snapshot.create(box, incremental=True)
        made = client.snapshot.restore(snapshot.snapshot_id).sandbox_id
        assert sh(client, made, "head -c 1 mapped").encode() == letter
        client.sandbox.terminate(made)
    client.process.signal(box, "writer", "KILL")


def test_an_increment_over_the_image_alone(client: Any, box: str, image: str) -> None:
    sh(client, box, CHANGE)
    before = tree(client, box)
    snapshot = client.snapshot.create(box, incremental=True)
    assert (snapshot.parent_id, snapshot.image_id) == (None, image)
    made = client.snapshot.restore(snapshot.snapshot_id).sandbox_id
    assert tree(client, made) == before
    assert "the base of" in refused("in_use", lambda: client.image.remove(image)).message
    on_top = client.snapshot.create(made, incremental=True)
    assert on_top.parent_id == snapshot.snapshot_id
    assert on_top.member_count == 1
    client.sandbox.terminate(made)
    client.snapshot.delete(snapshot.snapshot_id)
    again = client.snapshot.restore(on_top.snapshot_id).sandbox_id
    assert tree(client, again) == before
    client.sandbox.terminate(again)
    client.snapshot.delete(on_top.snapshot_id)


@pytest.mark.parametrize("name", [".wh.x", ".wh.", ".wh..wh..opq"])
def test_that_something_is_gone_of_which_no_layer_can_say_so(client: Any, box: str, name: str) -> None:
    sh(client, box, f"mkdir q; echo 1 >q/{name}")
    client.snapshot.create(box)
    sh(client, box, f"rm q/{name}")
    for _ in range(2):
        assert "full" in refused("invalid", lambda: client.snapshot.create(box, incremental=True)).message
    full = client.snapshot.create(box)
    sh(client, box, "echo 2 >q/two")
    last = client.snapshot.create(box, incremental=True)
    assert last.parent_id == full.snapshot_id
    assert any(name.endswith("q/two") for name in names(exported(client, last.snapshot_id)))


def test_a_deleted_parent_stays_as_long_as_something_builds_on_it(client: Any, box: str, shared_daemon: Any) -> None:
    sh(client, box, "echo 1 >one")
    parent = client.snapshot.create(box)
    sh(client, box, "echo 2 >two")
    child = client.snapshot.create(box, incremental=True)
    place = Path(parent.places[0].uri)
    gone = client.snapshot.delete(parent.snapshot_id)
    assert (gone.status, place.exists()) == ("deleted", True)
    assert "kept for" in gone.note
    refused("snapshot_not_ready", lambda: client.snapshot.restore(parent.snapshot_id))
    refused("conflict", lambda: client.snapshot.create(box, parent_id=parent.snapshot_id))
    made = client.snapshot.restore(child.snapshot_id).sandbox_id
    assert sh(client, made, "cat one two") == "1\n2\n"
    client.sandbox.terminate(made)
    client.snapshot.delete(child.snapshot_id)
    until(lambda: not place.exists())
    until(lambda: client.snapshot.get(parent.snapshot_id).note is None)
    assert client.snapshot.get(child.snapshot_id).places == []
    assert not os.path.exists(f"{shared_daemon.state_dir}/catalogues/{parent.snapshot_id}")


def test_nothing_to_build_on_is_told_before_anything_happens(client: Any, box: str, image: str) -> None:
    other = client.sandbox.create(image).sandbox_id
    foreign = client.snapshot.create(other)
    position = client.sandbox.get(box).position
    assert (
        "another sandbox"
        in refused("conflict", lambda: client.snapshot.create(box, parent_id=foreign.snapshot_id)).message
    )
    refused("not_found", lambda: client.snapshot.create(box, parent_id="snp_none"))
    refused("not_supported", lambda: client.snapshot.create(box, incremental=True, include=["sub"]))
    assert client.sandbox.get(box).position == position
    client.sandbox.terminate(other)


# -- over a sandbox's own files ---------------------------------------------------------------------------------------


@on_both_deep
def test_a_sandbox_gets_its_earlier_files_back(client: Any, box: str) -> None:
    sh(client, box, CHANGE)
    before = tree(client, box)
    client.process.launch(box, ["echo", "said before"], name="before")
    client.process.wait(box, "before")
    snapshot = client.snapshot.create(box)
    sh(client, box, "chmod 700 closed; rm -rf *; echo other >other")
    restored = client.sandbox.restore(box, snapshot.snapshot_id)
    assert (restored.status, restored.restored_from) == ("running", snapshot.snapshot_id)
    assert tree(client, box) == before
    assert client.process.read(box, "before").stdout == b"said before\n"
    types = [event.type for event in client.sandbox.history(box).events]
    assert types.index("sandbox.restore_requested") < types.index("sandbox.restored")
    sh(client, box, "echo on >on")
    later = client.snapshot.create(box, incremental=True)
    assert later.parent_id == snapshot.snapshot_id


@on_both_deep
def test_processes_are_not_ended_unless_that_is_asked_for(client: Any, box: str) -> None:
    snapshot = client.snapshot.create(box)
    client.process.launch(box, ["sleep", "1000"], name="sleeper")
    assert "sleeper" in refused("in_use", lambda: client.sandbox.restore(box, snapshot.snapshot_id)).message
    assert client.process.get(box, "sleeper").status == "running"
    client.sandbox.restore(box, snapshot.snapshot_id, end_processes=True)
    ended = client.process.get(box, "sleeper")
    assert (ended.status, ended.exit_code) == ("exited", 137)
    client.process.launch(box, ["true"], name="after")
    assert client.process.wait(box, "after").exit_code == 0


@on_both_deep
def test_a_damaged_archive_leaves_a_sandbox_as_it_was(client: Any, box: str) -> None:
    sh(client, box, "echo mine >mine")
    snapshot = client.snapshot.create(box)
    place = Path(snapshot.places[0].uri)
    content = place.read_bytes()
    sh(client, box, "echo more >mine")
    other = Path(client.snapshot.create(box).places[0].uri).read_bytes()
    sh(client, box, "echo mine >mine")
    client.process.launch(box, ["sleep", "1000"], name="sleeper")
    for damage, code in (
        (other, "snapshot_corrupt"),
        (content[: len(content) // 2], "snapshot_corrupt"),
        (content[:40] + bytes([content[40] ^ 1]) + content[41:], "snapshot_corrupt"),
        (b"", "snapshot_corrupt"),
        (None, "snapshot_missing"),
    ):
        place.unlink()
        if damage is not None:
            place.write_bytes(damage)
            place.chmod(0o600)
        refused(code, lambda: client.sandbox.restore(box, snapshot.snapshot_id, end_processes=True))
        refused(code, lambda: client.snapshot.restore(snapshot.snapshot_id))
        assert sh(client, box, "cat mine") == "mine\n"
        assert client.process.get(box, "sleeper").status == "running"
        assert client.sandbox.get(box).status == "running"
        if damage is None:
            place.write_bytes(content)
    client.sandbox.restore(box, snapshot.snapshot_id, end_processes=True)


@on_both_deep
def test_one_that_failed_can_be_restored_and_then_runs(client: Any, image: str) -> None:
    box = client.sandbox.create(image, secrets={"KEY": "s3cret"}).sandbox_id
    sh(client, box, "echo 1 >one")
    snapshot = client.snapshot.create(box)
    os.kill(client.sandbox.history(box).events[1].data["handle"]["first"]["pid"], 9)
    until(lambda: client.sandbox.get(box).status == "failed")
    refused("secret_missing", lambda: client.sandbox.restore(box, snapshot.snapshot_id))
    client.sandbox.restore(box, snapshot.snapshot_id, secrets={"KEY": "again"})
    assert sh(client, box, "cat one; echo $KEY") == "1\nagain\n"
    client.sandbox.terminate(box)


# -- from elsewhere and to elsewhere ----------------------------------------------------------------------------------


def test_archives_of_other_tools_are_brought_in(client: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "dir").mkdir(parents=True)
    (source / "dir" / "file").write_text("hello\n")
    (source / "link").symlink_to("dir/file")
    made = [
        subprocess.run(["tar", "-C", source, *words, "."], capture_output=True, check=True).stdout
        for words in (["-cf", "-"], ["-czf", "-"], ["--zstd", "-cf", "-"], ["--format=v7", "-cf", "-"])
    ]
    if shutil.which("bsdtar"):
        made.append(subprocess.run(["bsdtar", "-C", source, "-czf", "-", "."], capture_output=True, check=True).stdout)
    made.append(
        archive(
            ("dir/file", "hello\n"), ("link", lambda info: vars_of(info, type=tarfile.SYMTYPE, linkname="dir/file"))
        )
    )
    for content in made:
        snapshot = imported(client, content, name="theirs")
        assert (snapshot.imported, snapshot.name, snapshot.sandbox_id) == (True, "theirs", None)
        box = client.snapshot.restore(snapshot.snapshot_id, labels={"from": "elsewhere"})
        assert box.spec.labels == {"from": "elsewhere"}
        assert sh(client, box.sandbox_id, "cat dir/file; readlink link; id -un") == "hello\ndir/file\nsandbox\n"
        client.sandbox.terminate(box.sandbox_id)


@pytest.mark.needs("root")
def test_an_administrator_imports_an_archive_for_another_owner(client: Any, shared_daemon: Any) -> None:
    content = archive(("workspace/file", "theirs\n"))
    for owner in ("key:ci", "uid:1000"):
        assert imported(client, content, owner=owner).owner == owner

    def import_as_user(owner: str) -> Any:
        with shared_daemon.connect() as mine:
            return imported(mine, content, owner=owner)

    assert as_user(1000, partial(import_as_user, "uid:1000")).owner == "uid:1000"
    for other in ("key:ci", "uid:0"):
        assert as_user(1000, lambda other=other: refused("permission_denied", import_as_user, other).data)


@pytest.mark.needs("root")
def test_a_bomb_is_refused(shared_daemon: Any) -> None:
    bomb = archive(("zeros", "\0" * (80 << 20)))

    def import_as_user() -> str:
        with shared_daemon.connect() as client:
            return refused("snapshot_corrupt", lambda: imported(client, bomb)).message

    assert "200 times its size" in as_user(1000, import_as_user)


@on_both_deep
def test_a_virtual_environment_of_python_is_exported_and_imported(
    client: Any, box: str, image: str, provider: str, tmp_path: Path
) -> None:
    """Its links are absolute, and so are some of a workspace's own."""
    if provider == "docker":
        sh(client, box, "mkdir -p venv/bin; ln -s /bin/sh venv/bin/python; ln -s ../../etc up")  # there is no Python
    else:
        sh(client, box, "/usr/bin/python3 -m venv --without-pip venv; ln -s ../../etc up")
    before = tree(client, box)
    file = str(tmp_path / "work.tar.gz")
    archives.export_to(client, client.snapshot.create(box).snapshot_id, file)
    snapshot = archives.import_from(client, file, image_id=image if provider == "docker" else None)
    made = client.snapshot.restore(snapshot.snapshot_id).sandbox_id
    client.sandbox.restore(box, snapshot_id=snapshot.snapshot_id)
    for restored in (made, box):
        assert tree(client, restored) == before
        assert sh(client, restored, "readlink up; venv/bin/python -c 'exit' && echo runs") == "../../etc\nruns\n"
    client.sandbox.terminate(made)


def restored(client: Any, snapshot: Any) -> dict[str, str]:
    """The files of a sandbox that is restored from it."""
    box = client.snapshot.restore(snapshot.snapshot_id).sandbox_id
    try:
        return tree(client, box)
    finally:
        client.sandbox.terminate(box)


@pytest.mark.parametrize(
    ("words", "suffix"), [(["workspace"], "gz"), (["./workspace/"], "gz"), (["workspace"], "zst"), (["workspace"], "")]
)
def test_a_workspace_that_was_packed_with_its_directory_is_restored_without_it(
    client: Any, tmp_path: Path, words: list[str], suffix: str
) -> None:
    source = tmp_path / "workspace"
    (source / "workspace").mkdir(parents=True)
    (source / "workspace" / "inner").write_text("inner\n")
    (source / "file").write_text("file\n")
    os.link(source / "file", source / "hard")
    (source / "link").symlink_to("/workspace/file")
    file = f"{tmp_path}/a.tar{suffix and '.'}{suffix}"
    subprocess.run(["tar", "-caf", file, "-C", tmp_path, *words], check=True)
    snapshot = archives.import_from(client, file, digest=f"sha256:{_sha256(Path(file))}")
    assert (snapshot.root, snapshot.kind, snapshot.member_count) == ("/workspace", "full", 6)
    assert snapshot.format == f"tar{suffix and '.'}{suffix}"
    found = restored(client, snapshot)
    assert sorted(name for name in found if name[0] != "#") == [
        "file", "hard", "link", "workspace", "workspace/inner",
    ]  # fmt: skip
    assert (found["#./file"], found["link"]) == (found["#./hard"], "l 777 /workspace/file")
    client.snapshot.delete(snapshot.snapshot_id)


def test_a_directory_of_that_name_in_a_workspace_stays(client: Any, box: str) -> None:
    """Archives of Sandkeep say where their names begin."""
    sh(client, box, "rm -r *; mkdir workspace; echo 1 >workspace/1")
    before = tree(client, box)
    assert restored(client, imported(client, exported(client, client.snapshot.create(box).snapshot_id))) == before
    content = archive(("workspace/1", "1\n"))
    assert paths_of(restored(client, imported(client, content, files="workspace"))) == {"workspace", "workspace/1"}
    assert paths_of(restored(client, imported(client, content))) == {"1"}
    beside = archive(("workspace/1", "1\n"), ("bin/tool", "2\n"))
    assert paths_of(restored(client, imported(client, beside))) == {"workspace", "workspace/1", "bin", "bin/tool"}
    file = imported(client, archive(("workspace", "no directory\n")))
    assert paths_of(restored(client, file)) == {"workspace"}


def paths_of(found: dict[str, str]) -> set[str]:
    return {name for name in found if not name.startswith("#")}


def test_a_whole_root_file_system_is_no_workspace(client: Any, shared_daemon: Any) -> None:
    content = archive(("etc/passwd", "x\n"), ("usr/bin/tool", "x\n"), ("workspace/file", "x\n"))
    error = refused("not_supported", lambda: imported(client, content))
    assert "files=workspace" in error.message
    refused("not_supported", lambda: imported(client, archive(("file", "x")), files="root"))
    for failed in client.snapshot.list(all=True).snapshots[-2:]:
        assert (failed.status, failed.places) == ("failed", [])
        assert not Path(f"{shared_daemon.state_dir}/archives/imported/{failed.snapshot_id}.tar.gz").exists()
    taken = restored(client, imported(client, content, files="workspace"))
    assert {"etc/passwd", "usr/bin/tool", "workspace/file"} <= set(taken)


def vars_of(info: tarfile.TarInfo, **values: Any) -> None:
    for name, value in values.items():
        setattr(info, name, value)


def _as(**values: Any) -> Callable[[tarfile.TarInfo], None]:
    return lambda info: vars_of(info, **values)


HOSTILE = {
    "absolute": archive(("/etc/cron.d/evil", "x")),
    "upwards": archive(("a/../../evil", "x")),
    "through a link": archive(("out", _as(type=tarfile.SYMTYPE, linkname="/etc")), ("out/evil", "x")),
    "through a link to a link": archive(
        ("out", _as(type=tarfile.SYMTYPE, linkname="/etc")),
        ("again", _as(type=tarfile.SYMTYPE, linkname="out")),
        ("again/evil", "x"),
    ),
    "through a hard link to a link": archive(
        ("out", _as(type=tarfile.SYMTYPE, linkname="/etc")),
        ("hard", _as(type=tarfile.LNKTYPE, linkname="out")),
        ("hard/evil", "x"),
    ),
    "a file in place of a link": archive(("out", _as(type=tarfile.SYMTYPE, linkname="/etc/passwd")), ("out", "x")),
    "hard link that leads out": archive(("out", _as(type=tarfile.LNKTYPE, linkname="../../etc/passwd"))),
    "hard link to nothing": archive(("out", _as(type=tarfile.LNKTYPE, linkname="nothing"))),
    "device": archive(("null", _as(type=tarfile.CHRTYPE, devmajor=1, devminor=3))),
    "nothing": b"",
    "no archive": b"no archive at all " * 1000,
    "cut short": archive(("file", "x" * 10_000))[:-20],
    "bytes of zero": b"\0" * 10240,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archives_are_refused_and_nothing_is_left(client: Any, shared_daemon: Any, kind: str) -> None:
    before = layers(shared_daemon)
    error = refused("snapshot_corrupt", lambda: imported(client, HOSTILE[kind]))
    assert error.message
    failed = client.snapshot.list(all=True).snapshots[-1]
    assert (failed.status, failed.places) == ("failed", [])
    assert not Path(f"{shared_daemon.state_dir}/archives/imported/{failed.snapshot_id}.tar.gz").exists()
    assert set(layers(shared_daemon)) <= set(before)  # those of earlier tests may be on their way


def test_what_comes_is_what_was_said(client: Any) -> None:
    good = archive(("file", "x"))
    assert "and" in refused("snapshot_corrupt", lambda: imported(client, good, size_bytes=len(good) + 1)).message
    refused("snapshot_corrupt", lambda: imported(client, good, size_bytes=len(good) - 1))
    refused("snapshot_corrupt", lambda: imported(client, good, digest=f"sha256:{'0' * 64}"))


@on_both_deep
def test_a_file_is_exported_whole_or_not_at_all(
    client: Any, box: str, image: str, provider: str, tmp_path: Path
) -> None:
    sh(client, box, "echo 1 >one")
    snapshot = client.snapshot.create(box)
    told = archives.export_to(client, snapshot.snapshot_id, str(tmp_path / "work.tar.gz"))
    assert f"sha256:{_sha256(tmp_path / 'work.tar.gz')}" == told.digest == snapshot.digest
    options = {} if provider == "local" else {"image_id": image}
    back = archives.import_from(client, str(tmp_path / "work.tar.gz"), digest=told.digest, **options)
    assert back.digest == told.digest
    place = Path(snapshot.places[0].uri)
    place.write_bytes(place.read_bytes()[:-1])
    refused("snapshot_corrupt", lambda: archives.export_to(client, snapshot.snapshot_id, str(tmp_path / "bad")))
    assert os.listdir(tmp_path) == ["work.tar.gz"]
    refused("not_found", lambda: archives.export_to(client, snapshot.snapshot_id, str(tmp_path / "no" / "where")))


def test_an_exported_file_cannot_be_written_to(client: Any, box: str) -> None:
    snapshot = client.snapshot.create(box)
    with client.with_descriptors("snapshot.export", snapshot.snapshot_id) as handed:
        [descriptor] = handed.receive()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(descriptor, b"x")
        if os.geteuid() == 0:  # whom no mode keeps from anything
            for change in (lambda: os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR), lambda: os.fchmod(descriptor, 0)):
                with pytest.raises(OSError, match="Read-only"):
                    change()
        os.close(descriptor)


@on_both_deep
def test_a_promoted_snapshot_is_an_image_like_others(client: Any, box: str) -> None:
    sh(client, box, f"{CHANGE} chmod 700 closed")
    before = tree(client, box)
    snapshot = client.snapshot.create(box, incremental=True)
    promoted = client.snapshot.promote(snapshot.snapshot_id, labels={"from": "snapshot"})
    assert (promoted.kind, promoted.source, promoted.labels) == ("snapshot", snapshot.snapshot_id, {"from": "snapshot"})
    client.snapshot.delete(snapshot.snapshot_id)
    made = client.sandbox.create(promoted.image_id).sandbox_id
    assert tree(client, made) == before
    client.sandbox.terminate(made)
    client.image.remove(promoted.image_id)


# -- who may, and what is shown ---------------------------------------------------------------------------------------


@on_both_deep
def test_views_tell_of_it(client: Any, box: str, keeping_daemon: Any) -> None:
    first = client.snapshot.create(box, name="first")
    second = client.snapshot.create(box, labels={"kind": "nightly"})
    assert client.sandbox.get(box).latest_snapshot_id == second.snapshot_id
    found = client.snapshot.list(sandbox_id=box).snapshots
    assert [one.snapshot_id for one in found] == [first.snapshot_id, second.snapshot_id]
    assert client.snapshot.list(sandbox_id=box, name="first").snapshots == [first]
    assert client.snapshot.list(sandbox_id=box, labels={"kind": "nightly"}).snapshots == [second]
    path = Path(keeping_daemon.state_dir) / "sandboxes" / box / "metadata.json"
    until(lambda: path.exists() and second.snapshot_id in path.read_text())
    document = msgspec.json.decode(path.read_bytes())
    assert document["latest_snapshot"] == {"bucket": None, "path": second.places[0].path}
    assert [one["digest"] for one in document["snapshots"]] == [first.digest, second.digest]
    client.snapshot.delete(second.snapshot_id)
    until(lambda: msgspec.json.decode(path.read_bytes())["latest_snapshot"]["path"] == first.places[0].path)
    types = [event.type for event in client.sandbox.history(box).events]
    assert types.count("snapshot.stored") == 2
    assert types[-2:] == ["snapshot.delete_requested", "snapshot.deleted"]


@on_both_deep
def test_a_command_given_again_makes_one_snapshot(client: Any, box: str) -> None:
    first = client.snapshot.create(box, command_id="again")
    assert client.snapshot.create(box, command_id="again") == first
    made = client.snapshot.restore(first.snapshot_id, command_id="restore-again")
    assert client.snapshot.restore(first.snapshot_id, command_id="restore-again").sandbox_id == made.sandbox_id
    client.sandbox.terminate(made.sandbox_id)


def test_kept_files_go_with_the_last_sandbox_that_has_them(client: Any, box: str, shared_daemon: Any) -> None:
    snapshot = client.snapshot.create(box)
    made = [client.snapshot.restore(snapshot.snapshot_id).sandbox_id for _ in range(2)]
    assert snapshot.snapshot_id in layers(shared_daemon)
    client.sandbox.terminate(made[0])
    assert snapshot.snapshot_id in layers(shared_daemon)
    client.sandbox.terminate(made[1])
    until(lambda: snapshot.snapshot_id not in layers(shared_daemon))


def test_garbage_is_found_and_nothing_else(client: Any, box: str, shared_daemon: Any) -> None:
    snapshot = client.snapshot.create(box)
    orphan = Path(shared_daemon.state_dir) / "archives" / "imported" / "snp_01aaaaaaaaaaaaaaaaaaaaaaaa.tar.gz"
    orphan.parent.mkdir(parents=True, exist_ok=True)
    orphan.write_bytes(b"x" * 1000)
    (orphan.parent / "notes.txt").write_text("mine")
    told = client.snapshot.gc(dry_run=True)
    assert (told.archives, told.freed_bytes, orphan.exists()) == ([str(orphan)], 1000, True)
    assert client.snapshot.gc().archives == [str(orphan)]
    assert not orphan.exists()
    assert (orphan.parent / "notes.txt").exists()
    assert Path(snapshot.places[0].uri).exists()
