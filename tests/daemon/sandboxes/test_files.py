"""Files in sandboxes by RPC: read, written, listed, and copied through pipes, against code inside that interferes.

All of this runs twice: with root's daemon and with a user's own.
"""

import io
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.support.boxes import Box, archive, at_most, new_box
from tests.support.expect import refused, until
from tests.support.users import as_user, command_as

from sandkeep.errors import SandkeepError
from sandkeep.ids import new_id
from sandkeep.model import FileEntry
from sandkeepd.keeper.failure import failure
from sandkeepd.sandboxes.files import path_of

pytestmark = pytest.mark.needs("bwrap")
SETTINGS = {"SANDKEEP_SCRATCH_LIMIT": "64M", "SANDKEEP_DISK_LIMIT": "200G"}
ONCE_MORE_S = 600.0
"""How long the run as an ordinary user may take."""


@pytest.fixture(autouse=True)
def bound(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test waits for ever."""
    with at_most(120 + ONCE_MORE_S if "users_own" in request.node.name else 120):
        yield


@pytest.fixture(scope="module")
def image(shared_daemon: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("project")
    (root / "hello").write_text("hello\n")
    (root / "sub").mkdir()
    (root / "sub" / "inner").write_text("inner\n")
    with shared_daemon.connect() as client:
        return str(client.image.create(str(root)).image_id)


@pytest.fixture
def box(shared_box: Box) -> Iterator[Box]:
    """A sandbox whose files are those of the image, and in which no helper is left after the test."""
    yield shared_box
    until(shared_box.is_tidy, seen=shared_box.left)
    shared_box.sh("chmod -R u+rwx . ; rm -rf -- * .[!.]* ..?*; mkdir sub; echo inner >sub/inner; echo hello >hello")


# -- reading ----------------------------------------------------------------------------------------------------------


def test_a_file_is_read_in_pieces(box: Box) -> None:
    whole = box.read("hello")
    assert (whole.data, whole.size_bytes, whole.eof, whole.mode) == (b"hello\n", 6, True, 0o644)
    piece = box.read("/workspace/hello", offset=1, max_bytes=3)
    assert (piece.offset, piece.data, piece.size_bytes, piece.eof) == (1, b"ell", 6, False)
    assert box.read("hello", offset=5, max_bytes=1).eof
    beyond = box.read("hello", offset=99)
    assert (beyond.data, beyond.eof) == (b"", True)
    assert not box.read("hello", max_bytes=0).eof


def test_every_byte_of_a_file_comes_as_it_is(box: Box) -> None:
    data = bytes(range(256)) * 5000
    box.write("bytes", data)
    first = box.read("bytes", max_bytes=1_000_000)
    rest = box.read("bytes", offset=1_000_000)
    assert first.data + rest.data == data
    assert rest.eof


def test_the_end_of_a_huge_sparse_file_is_there_at_once(box: Box) -> None:
    box.sh("truncate -s 100G huge && printf end | dd of=huge bs=1 seek=107374182397 conv=notrunc 2>/dev/null")
    found = box.read("huge", offset=100 * 1024**3 - 5)
    assert (found.data, found.size_bytes, found.eof) == (b"\0\0end", 100 * 1024**3, True)


def test_what_the_kernel_shows_as_a_file_is_read_to_its_end(box: Box) -> None:
    found = box.read("/proc/self/status")
    assert found.data.startswith(b"Name:")
    assert found.eof
    part = box.read("/proc/self/status", max_bytes=5)
    assert (part.data, part.eof) == (b"Name:", False)


def test_a_file_that_grows_is_read_as_far_as_it_goes(box: Box) -> None:
    box.client.process.launch(box.id, ["sh", "-c", "while :; do echo more; done >>growing"], name="writer")
    until(lambda: box.sh("[ -s growing ] && echo yes || true"))
    end = 0
    for _ in range(20):
        found = box.read("growing", offset=end, max_bytes=100_000)
        assert found.size_bytes >= end + len(found.data)
        end += len(found.data)
    box.client.process.signal(box.id, "writer", "KILL")
    box.client.process.wait(box.id, "writer")


@pytest.mark.parametrize("path", ["fifo", "/dev/zero", "sub", "/dev/tty", "socket"])
def test_what_is_no_file_is_refused_at_once(box: Box, path: str) -> None:
    box.sh("mkfifo fifo; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'")
    refused("invalid", box.read, path)
    refused("invalid", box.write, path, b"")


def test_a_missing_file_and_one_that_is_closed(box: Box) -> None:
    assert "nowhere" in refused("not_found", box.read, "nowhere").message
    refused("not_found", box.read, "hello/inner")
    refused("not_found", box.listing, "nowhere")
    refused("not_found", box.listing, "hello")
    box.sh("chmod 0 sub hello")
    refused("permission_denied", box.read, "hello")
    refused("permission_denied", box.listing, "sub")
    box.sh("chmod 755 sub")


def test_another_working_directory_and_one_that_is_gone(shared_daemon: Any, image: str) -> None:
    with new_box(shared_daemon, image, working_dir="/workspace/sub") as box:
        assert box.read("inner").data == b"inner\n"
        box.write("made", b"1")
        assert box.read("/workspace/sub/made").data == b"1"
        box.sh("rm -r /workspace/sub")
        refused("not_found", box.read, "inner")
        assert box.read("/workspace/hello").data == b"hello\n"


# -- writing ----------------------------------------------------------------------------------------------------------


def test_a_file_is_written_whole_and_is_on_record(box: Box) -> None:
    before = len(box.events())
    written = box.write("new", b"content")
    assert (written.path, written.size_bytes, written.sha256) == ("new", 7, sha256(b"content").hexdigest())
    assert box.sh("cat new; stat -c %a new") == b"content644\n"
    assert box.sh("ls -A") == b"hello\nnew\nsub\n"
    (event,) = box.events()[before:]
    assert event.stream == f"{box.id}/files"
    assert event.data == {
        "path": "new", "kind": "file", "size_bytes": 7, "files": 1, "sha256": None,
    }  # fmt: skip


def test_a_repeated_command_gives_the_first_answer_and_one_event(box: Box) -> None:
    before = len(box.events())
    first = box.write("once", b"first", command_id=(command := new_id("cmd")))
    box.sh("echo changed >once")
    assert box.write("once", b"first", command_id=command) == first
    assert box.sh("cat once") == b"changed\n"
    refused("conflict", box.write, "once", b"other", command_id=command)
    refused("conflict", box.write, "elsewhere", b"first", command_id=command)
    assert len(box.events()) == before + 1


def test_modes_are_kept_or_given(box: Box) -> None:
    box.sh("chmod 751 hello")
    box.write("hello", b"1")
    assert box.read("hello").mode == 0o751
    box.write("hello", b"2", mode=0o600)
    assert box.read("hello").mode == 0o600
    box.write("fresh", b"3", mode=0o444)
    assert box.read("fresh").mode == 0o444
    refused("permission_denied", box.write, "fresh", b"4")


def test_a_link_is_followed_and_stays_a_link(box: Box) -> None:
    box.sh("ln -s sub/inner link; ln -s /workspace/sub/made new; ln -s loop loop")
    box.write("link", b"through")
    box.write("new", b"made")
    assert box.sh("cat sub/inner sub/made; readlink link new") == b"throughmadesub/inner\n/workspace/sub/made\n"
    refused("not_found", box.write, "loop", b"")


def test_directories_are_made_when_asked_for(box: Box) -> None:
    refused("not_found", box.write, "a/b/c", b"")
    box.write("a/b/c", b"deep", parents=True)
    assert box.read("a/b/c").data == b"deep"
    refused("invalid", box.write, "a/b/", b"")
    refused("not_found", box.write, "hello/x", b"", parents=True)


@pytest.mark.parametrize(
    "name", [b"\xff\xfe", b" \n\t ", b"-rf", b"~", b"$HOME `id` 'x' \"", b"\\n", b"*", "ä€😀".encode()]
)
def test_names_of_any_bytes(box: Box, name: bytes) -> None:
    box.client.sandbox.write_file(box.id, path_bytes=name, data=b"x")
    assert box.client.sandbox.read_file(box.id, path_bytes=name).data == b"x"
    (entry,) = [entry for entry in box.listing().entries if entry.name not in ("hello", "sub")]
    assert (entry.name_bytes or entry.name.encode()) == name
    with box.client.with_descriptors("sandbox.copy_out", box.id, path_bytes=name) as call:
        [pipe] = call.receive()
        with open(pipe, "rb") as file, tarfile.open(fileobj=file, mode="r|") as tar:
            assert [os.fsencode(member.name) for member in tar] == [b"./" + name]
        call.answer()


def test_a_path_is_given_in_one_way(box: Box) -> None:
    refused("invalid", box.client.sandbox.read_file, box.id)
    refused("invalid", box.client.sandbox.read_file, box.id, path="x", path_bytes=b"x")
    refused("invalid", box.client.sandbox.read_file, box.id, path_bytes=b"x\0y")
    refused("not_found", box.read, "x" * 300)


@pytest.mark.parametrize(
    ("place", "used", "told"),
    [
        ("/tmp", 60 * 1024**2, "tree/big"),
        # tar's own words would have to be written to that disk, too
        pytest.param("disk", 50 * 1024**2, "'disk': the sandbox's disk is full", marks=pytest.mark.needs("root")),
    ],
)
def test_a_full_disk_is_told_and_nothing_is_left(
    shared_daemon: Any, image: str, place: str, used: int, told: str
) -> None:
    with new_box(shared_daemon, image, disk_bytes=64 * 1024**2 if place == "disk" else None) as box:
        box.sh(f"mkdir -p {place}; head -c {used} /dev/zero >{place}/filler")
        refused("disk_limit", box.write, f"{place}/a/b/big", bytes(8 * 1024**2), parents=True)
        assert box.sh(f"ls -A {place}") == b"filler\n"
        archived = archive(("tree", None), ("tree/big", bytes(8 * 1024**2)))
        assert told in refused("disk_limit", box.copy_in, archived, place).message
        assert box.sh(f"ls -A {place}") == b"filler\n"
        assert box.read("hello").data == b"hello\n"
        until(box.is_tidy)


def test_a_file_larger_than_the_sandboxs_disk(shared_daemon: Any, image: str) -> None:
    with new_box(shared_daemon, image, disk_bytes=1024**2) as box:
        refused("disk_limit", box.write, "big", bytes(2 * 1024**2))
        refused("disk_limit", box.copy_in, archive(("big", bytes(2 * 1024**2))))
        assert box.sh("ls -A") == b"hello\nsub\n"


# -- listing ----------------------------------------------------------------------------------------------------------


def test_a_directory_is_listed_with_what_things_are(box: Box) -> None:
    box.sh("ln -s 'a target' link; mkfifo -m 600 fifo; touch -d '1999-12-31T23:59:59.5Z' old; chmod 4755 hello")
    found = {entry.name: entry for entry in box.listing().entries}
    assert sorted(found) == ["fifo", "hello", "link", "old", "sub"]
    assert (found["hello"].type, found["hello"].mode, found["hello"].size_bytes) == ("file", 0o4755, 6)
    assert (found["link"].type, found["link"].target) == ("symlink", "a target")
    assert (found["fifo"].type, found["fifo"].mode) == ("fifo", 0o600)
    assert found["sub"].type == "directory"
    assert found["old"].modified_at == "1999-12-31T23:59:59.500000Z"
    assert all(entry.target is None for entry in found.values() if entry.type != "symlink")
    assert {entry.type for entry in box.listing("/dev").entries} >= {"device", "symlink", "directory"}


def test_pages_of_a_directory_hold_every_name_once(box: Box) -> None:
    box.sh("mkdir many; cd many; seq -f 'n%03g' 50 | xargs touch; touch \"$(printf 'x\\376')\" 'a%b'")
    names: list[str] = []
    after = None
    while True:
        page = box.listing("many", after=after, limit=7)
        names += [entry.name for entry in page.entries]
        if (after := page.next) is None:
            break
    assert len(names) == len(set(names)) == 52
    assert names[0] == "a%b"
    assert names[-1] == "x\ufffd"


def test_a_hundred_thousand_files_are_listed_page_by_page(box: Box) -> None:
    box.sh("mkdir /tmp/many; cd /tmp/many; seq 100000 | xargs touch")
    page = box.listing("/tmp/many")
    assert len(page.entries) == 1000
    assert page.entries[1].name == "10"
    assert page.next == page.entries[-1].name
    later = box.listing("/tmp/many", after="9999", limit=1000)
    assert [entry.name for entry in later.entries] == [str(number) for number in range(99990, 100000)]
    assert later.next is None
    box.sh("rm -r /tmp/many")


def test_an_empty_directory_and_odd_times(box: Box) -> None:
    box.sh("mkdir empty; touch -d @-2000000000.25 early; touch -d @9223372036 late")
    assert box.listing("empty").entries == []
    found = {entry.name: entry.modified_at for entry in box.listing().entries}
    assert found["early"].startswith("1906-")
    assert found["late"].startswith("2262-")


# -- copies by RPC ----------------------------------------------------------------------------------------------------


def test_a_tree_comes_out_under_its_name(box: Box) -> None:
    data, copied = box.copy_out("sub")
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert [member.name for member in tar] == ["./sub", "./sub/inner"]
    assert (copied.path, copied.files, copied.size_bytes) == ("/workspace/sub", 2, 6)
    data, copied = box.copy_out("sub/", contents=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert [member.name for member in tar] == [".", "./inner"]


def test_what_another_copy_has_under_way_does_not_come_out(box: Box) -> None:
    with box.copying_in() as (_, _, pipe):
        pipe.write(archive(("tree", None), ("tree/file", bytes(5000)))[:3000])
        until(box.staged)
        data, copied = box.copy_out(".", contents=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert sorted(tar.getnames()) == [".", "./hello", "./sub", "./sub/inner"]
    assert copied.files == 4


@pytest.mark.parametrize(("path", "name"), [
    ("sub/", "sub"), ("sub/.", "sub"), (".", "workspace"), ("sub/..", "workspace"), ("link", "link"),
    ("link/", "sub"), ("hello", "hello"),
])  # fmt: skip
def test_what_a_path_means_that_comes_out(box: Box, path: str, name: str) -> None:
    box.sh("ln -s sub link")
    data, _ = box.copy_out(path)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.getnames()[0] == f"./{name}"


def test_what_cannot_come_out_is_named(box: Box) -> None:
    refused("not_found", box.copy_out, "nowhere")
    refused("not_found", box.copy_out, "hello", contents=True)
    refused("invalid", box.copy_out, "/")
    box.sh("touch sub/closed; chmod 0 sub/closed")
    assert "sub/closed" in refused("permission_denied", box.copy_out, "sub").message


def test_nothing_is_seen_of_a_copy_before_it_is_confirmed(box: Box) -> None:
    before = len(box.events())
    with box.copying_in() as (call, transfer_id, pipe):
        pipe.write(archive(("tree", None), ("tree/file", b"data")))
        pipe.close()
        until(box.staged)
        assert box.sh("ls") == b"hello\nsub\n"
        assert len(box.events()) == before
        copied = box.client.sandbox.copy_commit(box.id, transfer_id)
        assert copied == call.answer()
    assert (copied.path, copied.files, copied.size_bytes) == ("/workspace/tree", 2, 4)
    assert box.sh("cat tree/file") == b"data"
    (event,) = box.events()[before:]
    assert (event.data["path"], event.data["kind"], event.data["files"]) == ("/workspace/tree", "tree", 2)


def test_a_repeated_confirmation_gives_the_first_answer(box: Box) -> None:
    command = new_id("cmd")
    with box.copying_in() as (call, transfer_id, pipe):
        pipe.write(archive(("file", b"data")))
        pipe.close()
        first = box.client.sandbox.copy_commit(box.id, transfer_id, command_id=command)
        call.answer()
    assert box.client.sandbox.copy_commit(box.id, transfer_id, command_id=command) == first
    refused("not_found", box.client.sandbox.copy_commit, box.id, transfer_id)


def test_a_copy_whose_caller_goes_is_undone(box: Box) -> None:
    whole = archive(("tree", None), ("tree/file", bytes(100_000)))
    for cut in (0, 700, 50_000, len(whole)):
        with box.copying_in() as (_, transfer_id, pipe):
            pipe.write(whole[:cut])
            until(box.staged)
        until(box.is_tidy)
        refused("not_found", box.client.sandbox.copy_commit, box.id, transfer_id)
    assert box.sh("ls") == b"hello\nsub\n"


def test_a_transfer_id_is_taken_while_its_copy_lasts(box: Box) -> None:
    with (
        box.copying_in() as (_, transfer_id, _),
        box.client.with_descriptors("sandbox.copy_in", box.id, transfer_id=transfer_id, path=".") as second,
    ):
        refused("conflict", lambda: (second.receive(), second.answer()))


@pytest.mark.parametrize("bad", [b"no archive at all" * 100, archive(("a", b"1"), ("b", b"2")), b"", bytes(10240)])
def test_what_is_no_archive_of_one_thing_is_refused(box: Box, bad: bytes) -> None:
    with box.copying_in() as (call, _, pipe):
        with suppress(BrokenPipeError):
            pipe.write(bad)
        pipe.close()
        with pytest.raises(SandkeepError):
            call.answer()
    assert box.sh("ls") == b"hello\nsub\n"


def test_where_a_copy_goes(box: Box) -> None:
    one = archive(("thing", b"new"))
    assert box.copy_in(one, "sub").path == "/workspace/sub/thing"
    assert box.copy_in(one, "renamed").path == "/workspace/renamed"
    box.sh("ln -s hello link; ln -s sub tosub")
    assert box.copy_in(one, "link").path == "/workspace/hello"
    assert box.copy_in(one, "tosub").path == "/workspace/sub/thing"
    assert box.sh("cat hello; readlink link") == b"newhello\n"
    refused("not_found", box.copy_in, one, "nowhere/thing")
    refused("not_found", box.copy_in, one, "nowhere/")
    refused("permission_denied", box.copy_in, one, "/usr/thing")


def test_trees_are_merged(box: Box) -> None:
    box.sh("mkdir -p tree/kept; echo old >tree/file; echo kept >tree/kept/this; ln tree/file other")
    tree = archive(("tree", None), ("tree/file", b"new"), ("tree/kept", None), ("tree/kept/more", b"more"))
    box.copy_in(tree)
    assert box.sh("cd tree; cat file kept/this kept/more; cat ../other") == b"newkept\nmoreold\n"
    box.copy_in(archive(("file", b"newer"), ("dir", None)), "tree", contents=True)
    assert box.sh("cat tree/file; ls tree; stat -c %a tree") == b"newerdir\nfile\nkept\n755\n"


@pytest.mark.parametrize("tree", [
    archive(("tree", None), ("tree/a", b"new"), ("tree/directory", b"a file")),
    archive(("tree", None), ("tree/a", b"new"), ("tree/file", None)),
    archive(("tree", None), ("tree/a", b"new"), ("tree/link", None), ("tree/link/x", b"")),
])  # fmt: skip
def test_a_conflict_changes_nothing(box: Box, tree: bytes) -> None:
    box.sh("mkdir -p tree/directory; echo old >tree/a; echo file >tree/file; ln -s ../sub tree/link")
    before = box.sh("find tree | sort; cat tree/a tree/file; ls sub")
    assert "is there" in refused("conflict", box.copy_in, tree).message
    assert box.sh("find tree | sort; cat tree/a tree/file; ls sub") == before
    refused("conflict", box.copy_in, archive(("hello", None)))
    refused("conflict", box.copy_in, archive(("tree", b"")))


def test_what_leads_to_something_is_not_replaced(box: Box) -> None:
    box.sh("mkdir tree; mkfifo fifo tree/fifo")
    for data, path in ((("fifo", b"1"), "."), (("file", b"1"), "fifo"), (("tree", None), ".")):
        more = [("tree/fifo", b"1")] if data[0] == "tree" else []
        assert "neither a file" in refused("conflict", box.copy_in, archive(data, *more), path).message
    fifo = tarfile.TarInfo("fifo")
    fifo.type = tarfile.FIFOTYPE
    box.copy_in(archive(fifo))
    box.copy_in(archive(("tree", None), fifo), contents=True)
    assert box.sh("[ -p fifo ] && [ -p tree/fifo ] && ls") == b"fifo\nhello\nsub\ntree\n"


def test_a_sandbox_without_tar_says_so(shared_daemon: Any, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("cat", "sh", "readlink", "mkdir", "stat", "dd"):
        (tmp_path / "bin" / name).symlink_to(f"/usr/bin/{name}")
    with shared_daemon.connect() as client:
        image = client.image.create(str(tmp_path)).image_id
    with new_box(shared_daemon, image, env={"PATH": "/workspace/bin"}) as box:
        assert "no tar" in refused("not_supported", box.copy_in, archive(("x", b""))).message
        assert "no tar" in refused("not_supported", box.copy_out, "bin").message


def test_two_copies_to_one_target_at_once(box: Box) -> None:
    def tree(letter: bytes) -> bytes:
        files = [(f"tree/{number}", letter * 5000) for number in range(40)]
        return archive(("tree", None), *files, (f"tree/only-{letter.decode()}", b""))

    with box.copying_in() as (first, first_id, one), box.copying_in() as (second, second_id, other):
        for pipe, letter in ((one, b"a"), (other, b"b")):
            pipe.write(tree(letter))
            pipe.close()
        until(lambda: box.staged().count(b"\n") == 2)

        def confirm(transfer_id: str) -> None:
            with box.daemon.connect() as client:
                client.sandbox.copy_commit(box.id, transfer_id)

        threads = [threading.Thread(target=confirm, args=(each,)) for each in (first_id, second_id)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        first.answer()
        second.answer()
    for number in range(40):
        assert box.read(f"tree/{number}").data in (b"a" * 5000, b"b" * 5000)
    assert box.sh("cd tree; echo only-*") == b"only-a only-b\n"


def test_directories_without_rights_are_copied_and_undone(box: Box) -> None:
    closed = tarfile.TarInfo("tree/closed")
    closed.type, closed.mode = tarfile.DIRTYPE, 0o500
    inner = tarfile.TarInfo("tree/closed/inner")
    top = tarfile.TarInfo("tree")
    top.type, top.mode = tarfile.DIRTYPE, 0o555
    tree = archive(top, closed, inner)
    with box.copying_in() as (_, _, pipe):
        pipe.write(tree)
        pipe.close()
        until(box.staged)
    until(box.is_tidy)
    box.copy_in(tree)
    assert box.sh("stat -c '%a %n' tree tree/closed") == b"555 tree\n500 tree/closed\n"


# -- kills ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_daemon_that_goes_in_the_middle_leaves_nothing(
    new_daemon: Callable[[], Any], tmp_path: Path, end: str
) -> None:
    (tmp_path / "file").write_bytes(bytes(3_000_000))
    daemon = new_daemon()
    daemon.start()
    with daemon.connect() as client:
        made = client.sandbox.create(client.image.create(str(tmp_path)).image_id).sandbox_id
        box = Box(daemon, client, made)
        with (
            box.copying_in() as (_, _, pipe),
            client.with_descriptors("sandbox.copy_out", box.id, path="file") as out,
        ):
            pipe.write(archive(("tree", None), ("tree/file", bytes(10_000)))[:5000])
            [source] = out.receive()
            assert os.read(source, 10)
            until(box.staged)
            getattr(daemon, end)()
            with pytest.raises(SandkeepError):
                out.answer()
            if end == "kill":  # while the caller's ends are still open: the next daemon ends what is left
                daemon.start()
            os.close(source)
        if end == "stop":
            daemon.start()
    with daemon.connect() as client:
        box = Box(daemon, client, made)
        until(box.is_tidy)
        assert box.sh("ls -A") == b"file\n"


def test_a_sandbox_that_ends_in_the_middle_ends_its_copies(shared_daemon: Any, image: str) -> None:
    with new_box(shared_daemon, image) as box, box.copying_in() as (call, _, pipe):
        pipe.write(archive(("tree", None))[:512])
        with shared_daemon.connect() as other:
            other.sandbox.terminate(box.id)
        refused("not_ready", call.answer)
        refused("not_ready", box.read, "hello")


# -- enemies ----------------------------------------------------------------------------------------------------------

SWAPPER = """
import ctypes, os, random, sys, time
libc = ctypes.CDLL(None)
os.mkdir("place")
for name in ("secret", "file"):
    with open("place/" + name, "w") as file:
        file.write("inside")
os.symlink(sys.argv[1], "other")
print("swapping", flush=True)
while True:
    for _ in range(2 * random.randrange(200)):
        libc.renameat2(-100, b"place", -100, b"other", 2)
    time.sleep(random.random() * 0.02)
"""


def test_links_that_are_swapped_lead_nowhere(box: Box, tmp_path: Path) -> None:
    """The code inside swaps a directory and a link to a directory of the host, as quickly as it can, in bursts after
    which the directory is there: what is begun meets a swap at any of its steps, or none.
    """
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("HOST SECRET")
    before = sorted(os.listdir(outside))
    box.client.process.launch(box.id, ["python3", "-c", SWAPPER, str(outside)], name="swapper")
    until(lambda: box.client.process.read(box.id, "swapper").stdout)
    tree = archive(("place", None), ("place/written", b"by the copy"))
    works: dict[str, Callable[[], Any]] = {
        "read": lambda: box.read("place/secret").data,
        "write": lambda: box.write("place/file", b"written") and b"",
        "list": lambda: repr(box.listing("place").entries).encode(),
        "in": lambda: box.copy_in(tree) and b"",
        "out": lambda: box.copy_out("place/")[0],
    }
    seen, odd = b"", list[str]()
    for turn in range(30):
        for what, work in works.items():
            if what in ("in", "out") and turn % 3:
                continue
            try:
                seen += work()
            except SandkeepError as error:
                odd += ["malformed"] if "malformed" in error.message else []
    box.client.process.signal(box.id, "swapper", "KILL")
    box.client.process.wait(box.id, "swapper")
    assert b"HOST" not in seen
    assert odd == []
    assert sorted(os.listdir(outside)) == before
    assert (outside / "secret").read_text() == "HOST SECRET"
    box.sh("[ -L other ] || { mv -T place link; mv -T other place; mv -T link other; }")
    assert b"inside" in b"".join(work() for work in works.values())


def test_a_command_inside_that_lies_is_not_believed(shared_daemon: Any, image: str) -> None:
    """The sandbox's own PATH has programs first that are none of ours."""
    with new_box(shared_daemon, image, env={"PATH": "/workspace/bin:/usr/bin:/bin"}) as box:
        liars = {
            "stat": "echo 8fffffffffffffffffffffff 99999999999999999999999999",
            "dd": "exec cat /dev/zero | head -c 9000000",
            "find": "printf '%s\\0' ./../../etc ./x/y 'f644 99999999999999999999999 1' ''",
            "tar": "echo nonsense",
        }
        for name, script in liars.items():
            box.sh('mkdir -p bin; printf "%s\\n" "#!/bin/sh" "$2" >bin/"$1"; chmod +x bin/"$1"', name, script)
        for call in (lambda: box.read("hello", max_bytes=10), box.listing, lambda: box.copy_in(archive(("x", b"")))):
            with pytest.raises(SandkeepError):
                call()
        assert box.client.daemon.ping()


def test_a_pipe_that_the_code_inside_holds_open_keeps_only_its_own_copy(box: Box) -> None:
    """It can open the same FIFO, and so keep its end from coming; the caller can still go, and others are served."""
    script = """
    while :; do for f in /run/sandkeep/in/hlp_*.data /run/sandkeep/in/hlp_*.control; do
        [ -p "$f" ] && { sleep 1000 <>"$f" & echo held; while :; do echo; done <>"$f" >&0; }
    done; done
    """
    box.client.process.launch(box.id, ["sh", "-c", script], name="holder")
    for _ in range(5):
        with box.copying_in() as (_, _, pipe):
            pipe.write(archive(("x", b"")))
        assert box.read("hello").data == b"hello\n"
    box.client.process.signal(box.id, "holder", "KILL")
    box.client.process.wait(box.id, "holder")


def test_another_owners_files_are_not_found(box: Box) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")

    def codes() -> list[str]:
        found = []
        with box.daemon.connect() as client:
            for call in (
                lambda: client.sandbox.read_file(box.id, path="hello"),
                lambda: client.sandbox.write_file(box.id, path="hello", data=b""),
                lambda: client.sandbox.list_dir(box.id, path="."),
                lambda: client.sandbox.copy_commit(box.id, "any"),
                lambda: client.with_descriptors("sandbox.copy_out", box.id, path="hello").receive(),
                lambda: client.with_descriptors("sandbox.copy_in", box.id, transfer_id="t", path=".").receive(),
            ):
                try:
                    call()
                except SandkeepError as error:
                    found.append(error.code)
        return found

    assert as_user(4_321, codes) == ["not_found"] * 6


# -- without GNU's programs -------------------------------------------------------------------------------------------


@pytest.mark.needs("busybox")
def test_all_of_it_with_busybox_alone(shared_daemon: Any, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "hello").write_text("hello\n")
    shutil.copy(shutil.which("busybox") or "", tmp_path / "bin" / "busybox")
    for applet in subprocess.run(["busybox", "--list"], capture_output=True, text=True, check=True).stdout.split():
        if applet != "busybox":
            (tmp_path / "bin" / applet).symlink_to("busybox")
    with shared_daemon.connect() as client:
        image = client.image.create(str(tmp_path)).image_id
    with new_box(shared_daemon, image, env={"PATH": "/workspace/bin"}) as box:
        assert b"BusyBox" in box.sh("tar --help 2>&1; ls -l /proc/self/exe")
        assert box.read("hello", offset=1, max_bytes=2).data == b"el"
        box.write("new/file", b"data", parents=True, mode=0o640)
        box.write("new/file", b"more")
        assert (box.read("new/file").data, box.read("new/file").mode) == (b"more", 0o640)
        box.sh("cd new; ln -s 'two\nlines' link; touch 'odd\nname'; mkdir dir")
        found = {entry.name: entry for entry in box.listing("new").entries}
        assert {name: entry.type for name, entry in found.items()} == {
            "dir": "directory", "file": "file", "link": "symlink", "odd\nname": "file",
        }  # fmt: skip
        assert found["link"].target == "two\nlines"
        data, copied = box.copy_out("new")
        assert copied.files == 5
        assert box.copy_in(data, "again").files == 5
        assert box.copy_in(data, "again").path == "/workspace/again/new"
        box.copy_in(archive(("file", b"merged")), "again/new", contents=True)
        assert box.sh("cat again/new/file; readlink again/new/link") == b"mergedtwo\nlines\n"
        refused("conflict", box.copy_in, archive(("dir", b"")), "again/new")
        refused("not_found", box.copy_out, "nowhere")
        until(box.is_tidy)


# -- what is said -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("said", "code"), [
    (b"cat: write error: No space left on device", "disk_limit"), (b"sh: can't open x: no such file", "not_found"),
    (b"tar: x: Cannot open: Permission denied\ntar: Exiting", "permission_denied"), (b"", "provider_unavailable"),
    (b"tar: This does not look like a tar archive\ntar: Exiting with failure", "invalid"),
    (b"tar: Unexpected EOF in archive", "invalid"), (b"tar: Archive is compressed. Use -z option", "invalid"),
    (b"\xff\x1b[2J", "provider_unavailable"), (b"tar: unknown typeflag: 0x53", "not_supported"),
])  # fmt: skip
def test_what_commands_say_becomes_an_error(said: bytes, code: str) -> None:
    assert failure(said, 1, "a\udcff").code == code


def test_a_path_comes_as_text_or_as_bytes() -> None:
    from sandkeep.protocol.methods import FileRead

    assert path_of(FileRead(sandbox_id="s", path_bytes=b"\xff")) == "\udcff"


def test_an_entry_is_only_as_good_as_its_form() -> None:
    from sandkeepd.keeper.files import _entries

    (entry,) = _entries(b"./a\nb\0f644 5 1.5\0\0", "p")
    assert entry == FileEntry(
        name="a\nb", type="file", mode=0o644, size_bytes=5, modified_at="1970-01-01T00:00:01.500000Z"
    )
    (raw,) = _entries(b"./l\0xa1ff 3 -1\0to\0", "p")
    assert (raw.type, raw.mode, raw.target) == ("symlink", stat.S_IMODE(0xA1FF), "to")
    with pytest.raises(SandkeepError):
        _entries(b"./a\0f9 5 1\0\0", "p")


# -- once more, as an ordinary user -----------------------------------------------------------------------------------


@pytest.mark.needs("root")
@pytest.mark.skipif(os.geteuid() != 0, reason="this is the run as an ordinary user")
def test_all_of_this_with_a_users_own_daemon() -> None:
    uid = 30_124
    these = "pieces or written or confirmed or caller_goes or modes or merged or swapped or without_rights"
    with tempfile.TemporaryDirectory(prefix="sandkeep-user-") as base:
        os.chown(base, uid, uid)
        suite = [
            sys.executable, "-B", "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider",
            "--basetemp", f"{base}/tmp", "-k", f"({these}) and not users_own", __file__,
        ]  # fmt: skip
        done = subprocess.run(
            command_as(uid, suite), cwd=Path(__file__).parents[3], env={**os.environ, "HOME": base},
            capture_output=True, text=True, check=False, timeout=ONCE_MORE_S,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
