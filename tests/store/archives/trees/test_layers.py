"""Layers: what differs, as an archive; and chains of them, which make of a tree what it was at the last."""

import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support import tars, trees
from tests.support.tars import archive, member
from tests.support.trees import NEW, described

from sandkeep.errors import SandkeepError
from sandkeep_store.archives.tar.inspect import CheckedArchive, inspect
from sandkeep_store.archives.trees import layers
from sandkeep_store.archives.trees.overlay import unpack_layer
from sandkeep_store.archives.trees.pack import NO_LIMITS, PackedArchive, pack
from sandkeep_store.archives.trees.tree import Overlay
from sandkeep_store.archives.trees.unpack import unpack

OWNER = (70_001, 70_001) if os.geteuid() == 0 else None


class Chain:
    """A base, and archives above it, in a directory of their own."""

    def __init__(self, root: str, closing: ExitStack) -> None:
        self.root = root
        self._closing = closing
        self._archives = 0
        self.base = os.path.join(root, "base")
        os.mkdir(self.base)

    def open(self, path: str, flags: int = os.O_RDONLY) -> int:
        return self._closing.enter_context(trees.opened(path, flags))

    def new(self, data: bytes | None = None) -> int:
        """A file for an archive, or with one."""
        self._archives += 1
        opened = self.open(f"{self.root}/{self._archives}", NEW)
        if data is not None:
            os.write(opened, data)
        return opened

    def whole(self) -> int:
        """An archive of the base."""
        output = self.new()
        pack(self.open(self.base), output)
        return output

    @contextmanager
    def changing(self, uppers: list[str]) -> Iterator[str]:
        """The base below the uppers of an overlay, the latest first, and one more: it may be changed for a block."""
        upper = f"{self.root}/upper{len(uppers)}"
        work, view = f"{upper}-work", f"{upper}-view"
        for path in (upper, work, view):
            os.mkdir(path)
        shutil.copystat(uppers[0] if uppers else self.base, upper)
        with trees.overlay([*uppers, self.base], upper, work, view):
            yield view
        uppers.insert(0, upper)

    def layer(self, upper: str, overlay: Overlay = "trusted") -> int:
        output = self.new()
        trees.pack_layer(self.open(upper), output, overlay=overlay)
        return output

    def composed(self, chain: list[int], *, base: bool = True) -> dict[bytes, Any]:
        """What a chain makes of the base, or of nothing, by way of one whole archive."""
        output, target = self.new(), f"{self.root}/composed"
        layers.flatten(chain, output, base=self.open(self.base) if base else None, limits=NO_LIMITS)
        unpack(output, target, limits=NO_LIMITS, owner=OWNER)  # directories may be implied, which no limit foresees
        return described(target, links=False)

    def extracted(self, made: PackedArchive, output: int) -> dict[bytes, Any]:
        unpack(output, f"{self.root}/extracted", limits=made.limits, sha256=made.sha256, owner=OWNER)
        return described(f"{self.root}/extracted", links=False)


@contextmanager
def chains() -> Iterator[Chain]:
    with tempfile.TemporaryDirectory(prefix="skt-layers-") as root, ExitStack() as closing:
        yield Chain(root, closing)


@pytest.fixture
def chain() -> Iterator[Chain]:
    with chains() as made:
        yield made


def write(path: str, content: bytes = b"") -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


def names(archive_: int) -> list[str]:
    return [os.fsdecode(it.name) for it in CheckedArchive(archive_, NO_LIMITS)]


def files(top: str) -> dict[str, bytes]:
    """What is in the files of a tree."""
    found = {}
    for directory, _, inside in os.walk(top):
        for name in inside:
            path = os.path.join(directory, name)
            if not os.path.islink(path):
                with open(path, "rb") as file:
                    found[os.path.relpath(path, top)] = file.read()
    return found


# -- at random --------------------------------------------------------------------------------------------------------


def snapshots(seed: int) -> None:
    """A base, two incremental snapshots of what random work makes of it, and chains of these that have it back."""
    random = Random(seed)
    with chains() as chain:
        trees.Gardener(chain.base, random).work(random.randint(0, 25))
        uppers: list[str] = []
        views, incrementals = [], []
        for _ in range(2):
            with chain.changing(uppers) as view:
                trees.Gardener(view, random).work(random.randint(0, 15))
                views.append(described(view, links=False))
            incrementals.append(chain.layer(uppers[0]))

        assert chain.composed(incrementals[:1]) == views[0]
        assert chain.composed(incrementals) == views[1]
        assert chain.composed([chain.whole(), *incrementals], base=False) == views[1]


@pytest.mark.needs("root")
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32))
def test_two_incrementals_at_random_come_back_as_it_was(seed: int) -> None:
    snapshots(seed)


@pytest.mark.soak
@pytest.mark.needs("root")
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32))
def test_many_incrementals_at_random_come_back_as_it_was(seed: int) -> None:
    snapshots(seed)


# -- what an overlay changes ------------------------------------------------------------------------------------------


@pytest.mark.needs("root")
def test_what_is_gone_is_marked_as_others_mark_it(chain: Chain) -> None:
    for path in ("gone", "d/gone", "tree/a/b", "anew/old", "was-file", "was-dir/x", "kept"):
        write(f"{chain.base}/{path}", b"old")
    uppers: list[str] = []
    with chain.changing(uppers) as view:
        for path in ("gone", "d/gone", "was-file"):
            os.unlink(f"{view}/{path}")
        for path in ("tree", "anew", "was-dir"):
            shutil.rmtree(f"{view}/{path}")
        write(f"{view}/anew/new", b"new")
        write(f"{view}/was-file/y", b"new")
        write(f"{view}/was-dir", b"new")
        seen = described(view, links=False)
    layer = chain.layer(uppers[0])
    assert set(names(layer)) == {
        ".", ".wh.gone", "d", "d/.wh.gone", ".wh.tree", "anew", "anew/.wh..wh..opq", "anew/new", "was-file",
        "was-file/.wh..wh..opq", "was-file/y", "was-dir",
    }  # fmt: skip
    assert inspect(layer, layer=True).members == 12
    assert chain.composed([layer]) == seen


@pytest.mark.needs("root")
@pytest.mark.parametrize(("overlay", "other"), [("trusted", "user"), ("user", "trusted")])
def test_only_the_overlays_own_word_counts(chain: Chain, overlay: Overlay, other: str) -> None:
    upper = f"{chain.root}/upper"
    for name in ("own", "others", "neither"):
        write(f"{upper}/{name}/a")
    os.setxattr(f"{upper}/own", f"{overlay}.overlay.opaque", b"y")
    os.setxattr(f"{upper}/others", f"{other}.overlay.opaque", b"y")
    os.setxattr(f"{upper}/neither", f"{overlay}.overlay.opaque", b"n")
    layer = chain.layer(upper, overlay)
    assert [name for name in names(layer) if ".wh." in name] == ["own/.wh..wh..opq"]
    assert not [member for member in CheckedArchive(layer, NO_LIMITS) if member.xattrs]


@pytest.mark.needs("root")
def test_a_users_overlay_says_it_in_its_own_way(chain: Chain) -> None:
    """As a user's daemon mounts them, in a namespace of its own."""
    write(f"{chain.base}/d/old")
    write(f"{chain.base}/gone")
    upper = f"{chain.root}/upper"
    for name in ("upper", "work", "view"):
        os.mkdir(f"{chain.root}/{name}")
    subprocess.run(["chown", "-R", "70001:70001", chain.root], check=True)
    script = """
cd "$1" && mount -t overlay -o lowerdir=base,upperdir=upper,workdir=work,userxattr sandkeep view || exit
rm -r view/d view/gone; mkdir view/d; echo new >view/d/new
"""
    rights = ["setpriv", "--reuid", "70001", "--regid", "70001", "--clear-groups", "unshare", "-Urm"]
    subprocess.run([*rights, "sh", "-c", script, "sh", chain.root], check=True)
    layer = chain.layer(upper, "user")
    assert set(names(layer)) == {".", "d", "d/.wh..wh..opq", "d/new", ".wh.gone"}


@pytest.mark.parametrize("name", [".wh.a", "d/.wh.a", ".wh..wh..opq", ".wh.d/a"])
def test_a_file_that_is_called_as_a_mark_keeps_a_layer_from_being_made(chain: Chain, name: str) -> None:
    os.mkdir(f"{chain.root}/upper")
    write(f"{chain.root}/upper/{name}")
    with pytest.raises(SandkeepError, match="make a full snapshot") as caught:
        chain.layer(f"{chain.root}/upper")
    assert caught.value.code == "invalid"
    made = pack(chain.open(f"{chain.root}/upper"), output := chain.new())
    assert made.members >= 2
    assert chain.extracted(made, output) == described(f"{chain.root}/upper", links=False)


@pytest.mark.needs("root")
def test_paths_are_left_out_of_layers_too(chain: Chain) -> None:
    for path in ("a/gone", "a/kept", "b/gone"):
        write(f"{chain.base}/{path}")
    uppers: list[str] = []
    with chain.changing(uppers) as view:
        os.unlink(f"{view}/a/gone")
        os.unlink(f"{view}/b/gone")
    output = chain.new()
    trees.pack_layer(chain.open(uppers[0]), output, overlay="trusted", exclude=[b"b"])
    assert names(output) == [".", "a", "a/.wh.gone"]


# -- chains of others -------------------------------------------------------------------------------------------------


def test_layers_of_others_are_understood(chain: Chain) -> None:
    """Without the directories that files are in, and with a mark beside what replaces the thing."""
    for path in ("d/a", "d/b", "e/a", "f/a", "g"):
        write(f"{chain.base}/{path}", b"old")
    os.chmod(f"{chain.base}/d", 0o711)
    new = member(b"e/new", data=b"new")
    layer = chain.new(
        archive(member(b"d/.wh.a"), member(b"d/c", data=b"new"), new, member(b".wh.e"), member(b"e/", b"5"),
                member(b"f/.wh..wh..opq"), member(b".wh.g"), member(b"g/h", data=b"new"), member(b"x/y/z", data=b"new"))
    )  # fmt: skip
    chain.composed([layer])
    assert files(f"{chain.root}/composed") == {
        "d/b": b"old", "d/c": b"new", "e/new": b"new", "g/h": b"new", "x/y/z": b"new",
    }  # fmt: skip
    found = described(f"{chain.root}/composed")
    assert (found[b"d"][1], found[b"x/y"][1]) == ("0o711", "0o755")


def test_marks_hide_only_what_lies_below_their_layer(chain: Chain) -> None:
    write(f"{chain.base}/a", b"base")
    write(f"{chain.base}/d/b", b"base")
    gone = chain.new(archive(member(b".wh.a"), member(b".wh.d")))
    anew = chain.new(archive(member(b"d/c", data=b"two")))
    back = chain.new(archive(member(b"a", data=b"three")))
    chain.composed([gone, anew, back])
    assert files(f"{chain.root}/composed") == {"a": b"three", "d/c": b"two"}
    chain.composed([anew, back, gone])
    assert files(f"{chain.root}/composed") == {}


def test_what_was_a_file_in_between_does_not_come_back(chain: Chain) -> None:
    write(f"{chain.base}/d/old", b"base")
    file = chain.new(archive(member(b"d", data=b"a file")))
    again = chain.new(archive(member(b"d/", b"5"), member(b"d/new", data=b"new")))
    chain.composed([file, again])
    assert files(f"{chain.root}/composed") == {"d/new": b"new"}


def test_a_file_whose_name_is_gone_goes_by_another(chain: Chain) -> None:
    write(f"{chain.base}/a", b"shared")
    for name in ("b", "c", "d"):
        os.link(f"{chain.base}/a", f"{chain.base}/{name}")
    whole = chain.whole()
    layer = chain.new(archive(member(b".wh.a"), member(b"b", data=b"new")))
    for archives in ([layer], [whole, layer]):
        chain.composed(archives, base=archives == [layer])
        top = f"{chain.root}/composed"
        assert files(top) == {"b": b"new", "c": b"shared", "d": b"shared"}
        assert os.path.samefile(f"{top}/c", f"{top}/d")


def test_names_that_look_like_marks_stay_in_what_is_whole(chain: Chain) -> None:
    write(f"{chain.base}/.wh.a", b"mine")
    write(f"{chain.base}/a", b"too")
    whole, layer = chain.whole(), chain.new(archive(member(b"b", data=b"new")))
    flat = chain.new()
    made = layers.flatten([whole, layer], flat)
    chain.extracted(made, flat)
    assert files(f"{chain.root}/extracted") == {".wh.a": b"mine", "a": b"too", "b": b"new"}


def test_a_chain_without_a_base_begins_with_what_is_whole(chain: Chain) -> None:
    write(f"{chain.base}/a", b"x")
    flat = chain.new()
    made = layers.flatten([], flat, base=chain.open(chain.base))
    assert chain.extracted(made, flat) == described(chain.base, links=False)


def test_a_whole_archive_can_be_made_of_a_chain_and_its_base(chain: Chain) -> None:
    write(f"{chain.base}/a", b"old")
    write(f"{chain.base}/b", b"old")
    layer = chain.new(archive(member(b".wh.a"), member(b"c", data=b"new")))
    flat = chain.new()
    made = layers.flatten([layer], flat, base=chain.open(chain.base), codec="zstd", owner=(7, 7))
    assert (made.codec, made.members) == ("zstd", 3)
    chain.extracted(made, flat)
    assert files(f"{chain.root}/extracted") == {"b": b"old", "c": b"new"}


BAD = {
    "a mark of nonsense": archive(member(b".wh...")),
    "a way through a link": archive(member(b"l", b"2", target=b"/etc"), member(b"l/a")),
    "a hard link that leads out": archive(member(b"l", b"1", target=b"../l")),
    "no end": member(b"a"),
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("place", [0, 1])
def test_a_chain_is_looked_through_before_anything_is_made(chain: Chain, what: str, place: int) -> None:
    fine = chain.new(archive(member(b"a")))
    bad = chain.new(BAD[what])
    archives = [bad, fine] if place == 0 else [fine, bad]
    output = chain.new()
    with pytest.raises(SandkeepError) as caught:
        layers.flatten(archives, output, base=chain.open(chain.base))
    assert caught.value.code == "snapshot_corrupt"
    assert os.fstat(output).st_size == 0


def test_names_that_come_twice_and_links_do_not_go_together_in_a_chain(chain: Chain) -> None:
    twice = [member(b"a", data=b"1"), member(b"h", b"1", target=b"a"), member(b"a", data=b"2")]
    archives = [chain.new(archive(*twice)), chain.new(archive(member(b".wh.a")))]
    with pytest.raises(SandkeepError, match="names that come twice"):
        layers.flatten(archives, chain.new())


def test_an_archive_of_a_chain_that_changes_is_refused(chain: Chain) -> None:
    data = tars.archive(member(b"a", data=bytes(32 << 20)))
    layer = chain.new(data)

    def moved(passed: int) -> None:
        os.pwrite(layer, b"x", 31 << 20)  # beyond what is read ahead

    with pytest.raises(SandkeepError, match="changed while it was read"):
        layers.flatten([layer], chain.new(), moved=moved)


@pytest.mark.needs("root")
@pytest.mark.parametrize("mark_first", [True, False])
@pytest.mark.parametrize("named", [True, False])
def test_a_name_that_a_layer_takes_away_and_has(chain: Chain, mark_first: bool, named: bool) -> None:
    """A mark speaks of what is below its layer, wherever in the archive it stands; an overlay sees it so, too."""
    for name in ("d/old", "d/deep/old", "f", "l", "stays/old"):
        write(f"{chain.base}/{name}", b"below")
    marks = [member(b".wh.d"), member(b".wh.f"), member(b".wh.l"), member(b"stays/.wh.nothing")]
    news = [member(b"d/new", data=b"new"), member(b"f", data=b"new"), member(b"l", b"2", target=b"f")]
    news = [member(b"d/", b"5"), *news] if named else news
    layer = chain.new(archive(*marks, *news) if mark_first else archive(*news, *marks))
    expected = {"d/new": b"new", "f": b"new", "stays/old": b"below"}
    upper, work, view = (f"{chain.root}/{name}" for name in ("unpacked", "work", "view"))
    unpack_layer(layer, upper, overlay="trusted")
    os.mkdir(work)
    os.mkdir(view)
    with trees.overlay([chain.base], upper, work, view):
        assert files(view) == expected
        assert os.readlink(f"{view}/l") == "f"
    chain.composed([layer])
    assert files(f"{chain.root}/composed") == expected


@pytest.mark.needs("root")
def test_a_mark_that_cannot_be_made_is_no_defect(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "setxattr", full)
    layer = chain.new(archive(member(b"d/.wh..wh..opq")))
    with pytest.raises(SandkeepError, match="storage_unavailable"):
        unpack_layer(layer, f"{chain.root}/unpacked", overlay="trusted")
    assert sorted(os.listdir(chain.root)) == ["1", "base"]
