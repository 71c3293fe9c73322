"""What changed in a tree since it was looked at: of any changes at all, an archive makes the earlier tree the later."""

import os
import random
import shutil
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandkeep.errors import SandkeepError
from sandkeep.system.descriptors import closing_fd
from sandkeep_store.archives.tar.members import TOP
from sandkeep_store.archives.trees import changes
from sandkeep_store.archives.trees.changes import ChangedTree
from sandkeep_store.archives.trees.layers import flatten
from sandkeep_store.archives.trees.pack import pack, write
from sandkeep_store.archives.trees.read import reading_only
from sandkeep_store.archives.trees.unpack import unpack

NAMES = ("a", "b", "c", "d/a", "d/b", "d/e/a", "d/e/b", "f/a", "f")


def opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def looked_at(path: Path) -> dict[bytes, changes.Seen]:
    """A look that leaves no doubt: everything was changed long before it."""
    tree = opened(path)
    try:
        found = changes.take_catalogue(tree)
        while not all(seen.changed for seen in found.values()):
            time.sleep(0.01)  # the clock of files goes on by itself
            found = changes.take_catalogue(tree)
        return found
    finally:
        os.close(tree)


def shown(path: Path) -> dict[str, tuple[object, ...]]:
    """All that is in a directory, and what it is."""
    found: dict[str, tuple[object, ...]] = {}
    for place in sorted(path.rglob("*")):
        status = place.lstat()
        kind = stat.S_IFMT(status.st_mode)
        content = os.readlink(place) if place.is_symlink() else place.read_text() if place.is_file() else ""
        found[str(place.relative_to(path))] = (kind, stat.S_IMODE(status.st_mode), content)
    return found


def change(top: Path, chance: random.Random) -> None:
    """Do something to a tree, as a program might."""
    place, other = (top / chance.choice(NAMES) for _ in range(2))
    what = chance.choice(("write", "append", "remove", "directory", "link", "hard", "rename", "chmod", "touch"))
    try:
        if what == "write":
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(str(chance.random()))
        elif what == "append":
            with place.open("a") as file:
                file.write("more")
        elif what == "remove":
            shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink()
        elif what == "directory":
            place.mkdir(parents=True)
        elif what == "link":
            place.symlink_to("a")
        elif what == "hard":
            os.link(other, place)
        elif what == "rename":
            other.rename(place)
        elif what == "chmod":
            place.chmod(chance.choice((0o600, 0o755, 0o700)))
        else:
            os.utime(place, (1, 1))
    except OSError:
        return


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 12))
def test_an_archive_of_what_changed_makes_the_earlier_tree_the_later(seed: int, before: int, after: int) -> None:
    with tempfile.TemporaryDirectory(prefix="snaps-") as place:
        top, chance = Path(place, "top"), random.Random(seed)
        top.mkdir()
        for _ in range(before):
            change(top, chance)
        earlier = looked_at(top)
        with (
            open(f"{place}/full", "w+b") as full,
            open(f"{place}/layer", "w+b") as layer,
            open(f"{place}/whole", "w+b") as whole,
        ):
            tree = opened(top)
            pack(tree, full.fileno())
            for _ in range(after):
                change(top, chance)
            with reading_only(tree) as read:
                source = ChangedTree(changes.compare(earlier, changes.take_catalogue(tree)), read)
                write(source, layer.fileno(), "gzip", source.remarks)
            os.close(tree)
            flatten([full.fileno(), layer.fileno()], whole.fileno())
            unpack(whole.fileno(), f"{place}/made", durable=False)
        assert shown(Path(place, "made")) == shown(top)


def test_nothing_changed_is_nothing(tmp_path: Path) -> None:
    for name in ("a", "d/b"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    found = looked_at(tmp_path)
    assert changes.compare(found, looked_at(tmp_path)) == ([TOP], [])


def test_what_was_changed_in_the_last_moment_counts_as_changed(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    tree = opened(tmp_path)
    first, second = changes.take_catalogue(tree), changes.take_catalogue(tree)
    os.close(tree)
    assert first[b"a"].changed == b""
    assert b"a" in changes.compare(first, second).names


def test_a_time_that_was_set_back_hides_nothing(tmp_path: Path) -> None:
    place = tmp_path / "a"
    place.write_text("x")
    before = looked_at(tmp_path)
    times = place.stat()
    place.write_text("y")
    os.utime(place, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert changes.compare(before, looked_at(tmp_path)).names == [TOP, b"a"]


def test_what_is_doubted_counts_as_changed_by_all_its_names(tmp_path: Path) -> None:
    for name in ("a", "c"):
        (tmp_path / name).write_text("x")
    os.link(tmp_path / "a", tmp_path / "b")
    found = looked_at(tmp_path)
    now = changes.with_unreliable(found, {b"b", b"nothing"})
    assert changes.compare(found, now).names == [TOP, b"a", b"b"]
    assert len(changes.compare(found, changes.with_unreliable(found, None)).names) == 4


def test_a_catalogue_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "tree" / "line\nbreak").mkdir(parents=True)
    (tmp_path / "tree" / "blank s").write_text("x")
    found = looked_at(tmp_path / "tree")
    assert set(found) == {TOP, b"line\nbreak", b"blank s"}
    path = str(tmp_path / "catalogue")
    changes.save(found, path)
    assert changes.load(path) == found
    whole = Path(path).read_bytes()
    for damage in (b"", whole[:-3], whole[:40] + bytes(4096), whole[:60] + bytes(8) + whole[68:]):
        Path(path).write_bytes(damage)
        with pytest.raises(SandkeepError, match="full snapshot"):
            changes.load(path)


def test_a_file_that_is_called_like_a_mark_is_refused(tmp_path: Path) -> None:
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / ".wh.a").write_text("x")
    tree = opened(tmp_path / "top")
    with reading_only(tree) as read, (tmp_path / "layer").open("wb") as file:
        source = ChangedTree(changes.compare({}, changes.take_catalogue(tree)), read)
        with pytest.raises(SandkeepError, match="full"):
            write(source, file.fileno(), "gzip", source.remarks)
    os.close(tree)


def test_many_files_are_read_by_one_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(500):
        (tmp_path / str(number)).write_text("x")
    started: list[object] = []
    popen = subprocess.Popen

    def counted(*args: object, **options: object) -> object:
        started.append(args)
        return popen(*args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", counted)
    tree = opened(tmp_path)
    with reading_only(tree) as read:
        assert len(list(ChangedTree(changes.compare({}, changes.take_catalogue(tree)), read))) == 501
    os.close(tree)
    assert len(started) == 2


def test_more_names_than_a_pipe_holds(tmp_path: Path) -> None:
    """The program reads files before it has heard of all of them, and waits until these are taken from it."""
    folder = tmp_path / ("x" * 200)
    folder.mkdir()
    for number in range(2000):
        (folder / f"{number:0200}").write_bytes(b"x" * 1000)
    tree = opened(tmp_path)
    with reading_only(tree) as read:
        assert len(list(ChangedTree(changes.compare({}, changes.take_catalogue(tree)), read))) == 2002
    os.close(tree)


@pytest.mark.parametrize("told", [False, True])
def test_a_program_that_is_told_of_much_and_given_up(tmp_path: Path, told: bool) -> None:
    tree = opened(tmp_path)
    with reading_only(tree) as (_, names):
        if told:
            names.tell([b"x" * 200] * 100_000)
    os.close(tree)
    assert not any(thread.name == "sandkeep-names" for thread in threading.enumerate())


def test_few_and_many_files_are_looked_at_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "a b\nc").write_text("x")
    (tmp_path / "link").symlink_to("/")
    os.mkfifo(tmp_path / "fifo")
    tree = opened(tmp_path)
    few = changes.take_catalogue(tree)
    monkeypatch.setattr(changes, "_FEW", 0)
    many = looked_at(tmp_path)
    monkeypatch.undo()
    assert changes.take_catalogue(tree) == many
    assert {name: seen.kind for name, seen in few.items()} == {name: seen.kind for name, seen in many.items()}
    os.close(tree)


@pytest.mark.parametrize("few", [0, 500])
def test_more_files_than_a_catalogue_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(changes, "_FEW", few)
    monkeypatch.setattr(changes, "MAX_BYTES", 10_000)
    for number in range(100):
        (tmp_path / str(number)).touch()
    tree = opened(tmp_path)
    with pytest.raises(SandkeepError, match="too many for a snapshot") as refused:
        changes.take_catalogue(tree)
    os.close(tree)
    assert refused.value.code == "not_supported"


def test_what_cannot_be_looked_at_is_told(tmp_path: Path) -> None:
    for number in range(changes._FEW):
        (tmp_path / str(number)).write_text("x")
    tree = opened(tmp_path)
    with pytest.raises(SandkeepError, match="cannot be listed"):
        changes.take_catalogue(tree, ["false"])
    os.close(tree)


def test_what_is_very_deep(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(400):
        os.mkdir("d", dir_fd=here)
        above, here = here, os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(above)
    os.close(here)
    tree = opened(tmp_path)
    assert len(changes.take_catalogue(tree)) == 401
    os.close(tree)


# -- trees that are too deep -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("look", [changes.take_catalogue, changes.require_shallow])
@pytest.mark.parametrize("files", [1, 600])  # of few and of many, which are looked at by other means
@pytest.mark.parametrize(
    ("name", "levels", "why"),
    [("d", 512, "more than 512 levels"), ("d" * 255, 15, "paths of more than 3840 bytes")],
)
def test_paths_of_too_many_names_or_bytes_are_refused(
    tmp_path: Path, look: Callable[[int], object], files: int, name: str, levels: int, why: str
) -> None:
    deepest = tmp_path.joinpath(*[name] * (levels - 1))
    deepest.mkdir(parents=True)
    for number in range(files):
        (deepest / str(number)).touch()
    with closing_fd(opened(tmp_path)) as tree:
        look(tree)
        (deepest / name).mkdir()
        (deepest / name / "f").touch()
        refused = refused_by(look, tree)
    assert refused.code == "tree_too_deep"
    assert why in refused.message


def refused_by(look: Callable[[int], object], tree: int) -> SandkeepError:
    with pytest.raises(SandkeepError) as refusal:
        look(tree)
    return refusal.value
