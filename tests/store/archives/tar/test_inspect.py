"""An archive is looked through before anything of it is extracted: what is not plainly safe does not get further."""

import bz2
import gzip
import os
import subprocess
import sys
import tarfile
import threading
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from random import Random

import pytest
import zstandard
from tests.support import tars
from tests.support.expect import refused
from tests.support.tars import END, archive, extended, header, member

from sandkeep.errors import SandkeepError
from sandkeep.system.descriptors import closing_fd
from sandkeep_store.archives.tar import sparse
from sandkeep_store.archives.tar.inspect import CheckedArchive, Inspection, inspect
from sandkeep_store.archives.tar.limits import DEFAULT_LIMITS, Limits

Look = Callable[..., Inspection]
PLAIN = archive(member(b"d/", b"5"), member(b"d/a", data=b"x" * 700), member(b"d/l", b"2", target=b"a"))


def opened(path: str) -> AbstractContextManager[int]:
    return closing_fd(os.open(path, os.O_RDONLY))


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


CODECS = {"none": bytes, "gzip": gzip.compress, "zstd": zstd}


@pytest.fixture
def look(tmp_path: str) -> Look:
    """Inspects bytes."""

    def inspected(data: bytes, limits: Limits = DEFAULT_LIMITS, **options: object) -> Inspection:
        path = os.path.join(tmp_path, "archive")
        with open(path, "wb") as file:
            file.write(data)
        with opened(path) as descriptor:
            return inspect(descriptor, limits, **options)  # type: ignore[arg-type]

    return inspected


def test_nothing_goes_on_with_an_archive_that_was_refused(tmp_path: str) -> None:
    path = os.path.join(tmp_path, "archive")
    with open(path, "wb") as file:
        file.write(archive(member(b"../a"), member(b"b", data=bytes(20 << 20))))
    before = {*threading.enumerate()}
    with opened(path) as descriptor, pytest.raises(SandkeepError):
        inspect(descriptor)
    assert {*threading.enumerate()} <= before


def corrupt(
    look: Look, data: bytes, words: str = "", limits: Limits = DEFAULT_LIMITS, **options: object
) -> SandkeepError:
    """The error for bytes that are refused, as they are and compressed."""
    error = refused("snapshot_corrupt", look, data, limits, **options)
    assert words in error.message, error.message
    return error


# -- what an archive is -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_what_it_is_is_told(look: Look, codec: str) -> None:
    data = CODECS[codec](PLAIN)
    found = look(data)
    assert (found.codec, found.size_bytes, found.members, found.content_bytes) == (codec, len(data), 3, 700)


def test_it_is_read_from_its_beginning_wherever_the_descriptor_stands(tmp_path: str) -> None:
    path = os.path.join(tmp_path, "archive")
    with open(path, "wb") as file:
        file.write(PLAIN)
    with opened(path) as descriptor:
        os.lseek(descriptor, 100, os.SEEK_SET)
        assert inspect(descriptor) == inspect(descriptor)


def test_members_are_listed(tmp_path: str) -> None:
    path = os.path.join(tmp_path, "archive")
    with open(path, "wb") as file:
        file.write(archive(member(b"./d/", b"5", mtime=7), member(b"d//./a", data=b"abc", mode=0o755)))
    with opened(path) as descriptor:
        found = [(it.name, it.kind, it.size, it.mode, it.mtime_ns) for it in CheckedArchive(descriptor, Limits())]
    assert found == [(b"d", "directory", 0, 0o644, 7 * 10**9), (b"d/a", "file", 3, 0o755, 0)]


# -- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_cut_short_anywhere_is_refused(look: Look, codec: str) -> None:
    data = CODECS[codec](PLAIN)
    for size in range(len(data)):
        corrupt(look, data[:size])


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_any_bit_that_flips_is_seen_or_changes_nothing(look: Look, codec: str) -> None:
    data = CODECS[codec](PLAIN)
    good = look(data)
    for at in range(len(data)):
        for bit in (1, 16, 128):
            flipped = bytearray(data)
            flipped[at] ^= bit
            try:
                found = look(bytes(flipped))
            except SandkeepError as error:
                assert error.code == "snapshot_corrupt"  # noqa: PT017 - it may also be unharmed
            else:
                assert (found.members, found.content_bytes) == (good.members, good.content_bytes)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (zstd(b""), "is empty"),
        (END, "no members"),
        (bytes(10240), "no members"),
        (b"not an archive", "cut short"),
        (b"not an archive" * 100, "not a tar archive"),
        (gzip.compress(b"not an archive" * 100, mtime=0), "not a tar archive"),
        (zstd(b"not an archive" * 100), "not a tar archive"),
        (gzip.compress(gzip.compress(PLAIN), mtime=0) * 3, ""),
        (bz2.compress(PLAIN), ""),
        (zlib.compress(PLAIN), ""),
        (os.urandom(4096), ""),
        (b"\x1f\x8b", "cut short"),
        (b"\x1f\x8b\x08\x08" + bytes(6) + b"n" * 100_000, "cut short"),
        (b"\x28\xb5\x2f\xfd", "cut short"),
        (PLAIN[:-1024], "nothing marks its end"),
        (PLAIN[:-512], "half an end-of-archive mark"),
        (PLAIN[:-1024] + bytes(512) + PLAIN, "half an end-of-archive mark"),
        (member(b"a") + b"x" * 512 + END, "no header"),
        (PLAIN + b"x", "follows its end-of-archive mark"),
        (PLAIN + bytes(5000) + PLAIN, "follows its end-of-archive mark"),
        (gzip.compress(PLAIN, mtime=0) + b"x", "follows the compressed stream"),
        (
            gzip.compress(PLAIN, mtime=0) + bytes(100) + gzip.compress(PLAIN, mtime=0),
            "follows the compressed stream",
        ),
        (zstd(PLAIN) + b"garbage", "follows the compressed stream"),
        (archive(extended({b"path": b"b"})), "extended header is the last thing"),
    ],
)
def test_what_is_no_archive_is_refused(look: Look, data: bytes, words: str) -> None:
    corrupt(look, data, words)


# -- what would do harm -----------------------------------------------------------------------------------------------

LINK = member(b"l", b"2", target=b"/tmp")
HOSTILE = {
    "an absolute name": (archive(member(b"/etc/passwd")), "absolute path"),
    "upwards": (archive(member(b"../a")), "leads upwards"),
    "upwards within": (archive(member(b"a/../../b")), "leads upwards"),
    "upwards, but not out": (archive(member(b"a/../b")), "leads upwards"),
    "upwards by a long name": (archive(member(b"x", b"L", b"../a\0"), member(b"a")), "leads upwards"),
    "upwards by a record": (archive(extended({b"path": b"../a"}), member(b"a")), "leads upwards"),
    "upwards by a sparse name": (
        archive(extended({b"GNU.sparse.name": b"../a", b"GNU.sparse.size": b"0"}), member(b"a")), "leads upwards",
    ),
    "upwards by a prefix": (archive(header(b"a", prefix=b"..")), "leads upwards"),
    "no name": (archive(member(b"")), "no name"),
    "a NUL in a name": (archive(extended({b"path": b"a\0b"}), member(b"a")), "no name"),
    "a long name": (archive(extended({b"path": (b"a" * 200 + b"/") * 21 + b"a"}), member(b"a")), "longer than a path"),
    "a long part": (archive(extended({b"path": b"a" * 256}), member(b"a")), "longer than a path"),
    "a member through a link": (archive(LINK, member(b"l/a")), "goes through 'l'"),
    "a member through a link inside": (
        archive(member(b"d/", b"5"), member(b"l", b"2", target=b"d"), member(b"l/a")), "goes through 'l'",
    ),
    "a member through a link to a link": (
        archive(LINK, member(b"m", b"2", target=b"l"), member(b"m/a")), "goes through 'm'",
    ),
    "a member through a replaced link": (
        archive(member(b"l", b"2", target=b"d"), LINK, member(b"l/a")), "goes through 'l'",
    ),
    "a member through a link of a directory": (
        archive(member(b"d/l", b"2", target=b"../.."), member(b"d/l/etc/a")), "goes through 'd/l'",
    ),
    "a hard link below a link": (
        archive(LINK, member(b"a"), member(b"l/h", b"1", target=b"a")), "goes through 'l'",
    ),
    "a file where a hard link to a link is": (
        archive(LINK, member(b"m", b"1", target=b"l"), member(b"m", data=b"x")), "a symbolic link and then a file",
    ),
    "a member through a hard link to a link": (
        archive(member(b"d/", b"5"), member(b"l", b"2", target=b"d"), member(b"m", b"1", target=b"l"), member(b"m/a")),
        "goes through 'm'",
    ),
    "a directory where a link is": (archive(LINK, member(b"l/", b"5")), "a symbolic link and then a directory"),
    "a link where a directory is": (archive(member(b"l/a"), LINK), "a directory and then a symbolic link"),
    "a file where a link is": (archive(LINK, member(b"l")), "a symbolic link and then a file"),
    "a member through a file": (archive(member(b"a"), member(b"a/b")), "goes through 'a'"),
    "a hard link out": (archive(member(b"h", b"1", target=b"../../etc/passwd")), "leads upwards"),
    "an absolute hard link": (archive(member(b"h", b"1", target=b"/etc/passwd")), "absolute path"),
    "a hard link to what is not there": (archive(member(b"h", b"1", target=b"etc/passwd")), "no file that came before"),
    "a hard link to what comes later": (archive(member(b"h", b"1", target=b"a"), member(b"a")), "no file that came"),
    "a hard link through a link": (archive(LINK, member(b"h", b"1", target=b"l/passwd")), "no file that came before"),
    "a hard link to a directory": (archive(member(b"d/", b"5"), member(b"h", b"1", target=b"d")), "no file that came"),
    "a hard link to itself": (archive(member(b"a"), member(b"a", b"1", target=b"a")), "no file that came before"),
    "a link to nothing": (archive(member(b"l", b"2")), "leads to no name"),
    "a device": (archive(member(b"c", b"3", major=1, minor=3)), "is a character device"),
    "a disk": (archive(member(b"b", b"4", major=8, minor=0)), "is a block device"),
    "a whiteout's device": (archive(member(b"c", b"3", major=0, minor=0)), "is a character device"),
    "a top that is a file": (archive(member(b".")), "its top is a file"),
    "a top that is a link": (archive(member(b"./", b"2", target=b"/tmp")), "a directory's name"),
    "an unknown kind": (archive(member(b"a", b"~")), "unknown kind"),
    "another volume": (archive(member(b"a", b"M")), "unknown kind"),
    "a list of a directory": (archive(member(b"a/", b"D")), "unknown kind"),
    "a directory with content": (archive(member(b"d/", b"5", b"x" * 512)), "with content"),
    "a link with content": (archive(member(b"l", b"2", b"x" * 512, target=b"a")), "with content"),
    "a hard link with content": (archive(member(b"a"), member(b"h", b"1", b"x", target=b"a")), "with content"),
    "a file with a directory's name": (archive(member(b"a/", b"0", b"x")), "a directory's name"),
    "two names": (
        archive(member(b"x", b"L", b"one\0"), extended({b"path": b"two"}), member(b"a")), "two headers name",
    ),
    "two names of one kind": (
        archive(extended({b"path": b"one"}), extended({b"path": b"two"}), member(b"a")), "two headers name",
    ),
    "one name for all": (archive(extended({b"path": b"b"}, b"g"), member(b"a")), "sets the name or size"),
    "one size for all": (archive(extended({b"size": b"0"}, b"g"), member(b"a", data=b"x")), "sets the name or size"),
    "a label with content": (archive(member(b"v", b"V", b"x")), "unknown kind"),
    "names for all without end": (extended({b"comment": b"x"}, b"g") * 1001 + archive(member(b"a")), "global headers"),
    "a map that is one long number": (
        archive(extended({b"GNU.sparse.major": b"1", b"GNU.sparse.minor": b"0", b"GNU.sparse.realsize": b"9"}),
                member(b"a", data=b"9" * 1_000_000)), "cut short",
    ),
    "a large extended header": (archive(header(b"x", b"x", size=2 << 20) + bytes(2 << 20)), "too large"),
    "a large long name": (archive(header(b"x", b"L", size=8**11 - 1)), "too large"),
    "a record without a length": (archive(extended(b"path=x\n"), member(b"a")), "without a length"),
    "a record with a wrong length": (archive(extended(b"99 path=x\n"), member(b"a")), "wrong length"),
    "a record with a length of nothing": (archive(extended(b"0 path=x\n"), member(b"a")), "wrong length"),
    "a record with a negative size": (archive(extended({b"size": b"-1"}), member(b"a")), "no number"),
    "a record with a wild size": (archive(extended({b"size": b"9" * 30}), member(b"a")), "no number"),
    "a record with a wild time": (archive(extended({b"mtime": b"1e9"}), member(b"a")), "no number"),
    "a record with a far time": (archive(extended({b"mtime": b"9" * 18}), member(b"a")), "a time that is none"),
    "a size that is no number": (archive(header(b"a", size=b"0000x")), "no number"),
    "a size that begins with nothing": (archive(header(b"a", size=b"\0" + b"0000000001\0")), "no number"),
    "a size that is two": (archive(header(b"a", size=b"1\x000000000001")), "no number"),
    "a size below nothing": (archive(header(b"a", size=b"\xff" * 12)), "no number"),
    "a size above all": (archive(header(b"a", size=b"\x80" + b"\xff" * 11)), "no number"),
    "a size of a hundred gigabytes": (archive(header(b"a", size=b"\x80" + bytes(6) + b"\x19" + bytes(4))), "more than"),
    "a hole of a hundred gigabytes": (
        archive(header(b"a", b"S", realsize=b"\x80" + bytes(6) + b"\x19" + bytes(4))), "more than",
    ),
    "a hole of exabytes": (
        archive(extended({b"GNU.sparse.major": b"1", b"GNU.sparse.minor": b"0", b"GNU.sparse.realsize": b"9" * 18}),
                member(b"a", data=tars.padded(b"0\n"))), "more than",
    ),
    "a map that overlaps": (
        archive(extended({b"GNU.sparse.size": b"10", b"GNU.sparse.map": b"0,2,1,2"}), member(b"a", data=b"xxxx")),
        "makes no sense",
    ),
    "a map that goes on": (
        archive(extended({b"GNU.sparse.size": b"3", b"GNU.sparse.map": b"0,4"}), member(b"a", data=b"xxxx")),
        "makes no sense",
    ),
    "a map of other data": (
        archive(extended({b"GNU.sparse.size": b"9", b"GNU.sparse.map": b"0,3"}), member(b"a", data=b"xxxx")),
        "not that of its data",
    ),
    "half a map": (
        archive(extended({b"GNU.sparse.size": b"9", b"GNU.sparse.map": b"0"}), member(b"a")), "makes no sense",
    ),
    "a map without end": (
        archive(extended({b"GNU.sparse.major": b"1", b"GNU.sparse.minor": b"0", b"GNU.sparse.realsize": b"9"}),
                member(b"a", data=b"9\n0\n")), "cut short",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_what_would_do_harm_is_refused(look: Look, what: str) -> None:
    data, words = HOSTILE[what]
    corrupt(look, data, words)
    corrupt(look, gzip.compress(data, mtime=0), words)


def test_the_member_is_named_in_letters_that_can_be_shown(look: Look) -> None:
    error = corrupt(look, archive(member(b"../\x1b[2J\n\xff")), r"'../\x1b[2J\n\xff' leads upwards")
    assert error.data["member"] == r"../\x1b[2J\n\xff"


@pytest.mark.parametrize("target", [b"/usr/bin/python3", b"/", b"..", b"../tree/x", b"l", b"d/../../.."])
def test_a_symbolic_link_may_lead_anywhere(look: Look, target: bytes) -> None:
    """It is content: inside the sandbox it leads to the sandbox's files."""
    assert look(archive(member(b"l", b"2", target=target), member(b"h", b"1", target=b"l"))).members == 2


@pytest.mark.parametrize(
    ("name", "kind", "data"),
    [
        (b".wh.", b"0", b""), (b"d/.wh..", b"0", b""), (b".wh...", b"0", b""), (b".wh..wh.x", b"0", b""),
        (b".wh..wh.x/..", b"0", b""), (b".wh..wh..opqx", b"0", b""), (b".wh.d/a", b"0", b""), (b".wh.a", b"5", b""),
        (b".wh.a", b"0", b"x"), (b".wh..wh.plnk/1.2", b"0", b""), (b"d/.wh.e/.wh.f", b"0", b""),
    ],
)  # fmt: skip
def test_marks_that_take_away_what_cannot_be_are_refused(look: Look, name: bytes, kind: bytes, data: bytes) -> None:
    corrupt(look, archive(member(b"d/", b"5"), member(name, kind, data)), layer=True)


def test_marks_are_names_like_others_in_what_is_no_layer(look: Look) -> None:
    data = archive(member(b".wh.a", data=b"x"), member(b"d/.wh..wh..opq"))
    assert look(data).members == 2
    assert look(archive(member(b".wh.a"), member(b"d/.wh..wh..opq")), layer=True).members == 2


# -- what is taken as others take it ----------------------------------------------------------------------------------

FINE = {
    "several parts of gzip": gzip.compress(PLAIN[:600]) + gzip.compress(b"", mtime=0) + gzip.compress(PLAIN[600:]),
    "padding behind gzip": gzip.compress(PLAIN, mtime=0) + bytes(3000),
    "several frames of zstd": zstd(PLAIN[:600]) + zstd(PLAIN[600:]),
    "frames that are skipped": b"\x50\x2a\x4d\x18\x03\0\0\0abc" + zstd(PLAIN) + b"\x5f\x2a\x4d\x18\0\0\0\0",
    "a frame without its size": zstandard.ZstdCompressor(write_content_size=False).compress(PLAIN),
    "padding": PLAIN + bytes(50_000),
    "a volume's label": member(b"volume", b"V") + PLAIN,
    "a comment for all": extended({b"comment": b"abc"}, b"g") + PLAIN,
    "a kind from long ago": archive(header(b"d/", b"\0"), header(b"d/a", b"\0", magic=bytes(8)), member(b"d/b", b"7")),
    "a name that comes twice": archive(member(b"d/a", data=b"x" * 700), member(b"d/a"), member(b"d/b")),
    "a directory that comes late": archive(member(b"d/a", data=b"x" * 700), member(b"d/", b"5"), member(b"d/b")),
    "a signed sum": archive(member(b"d/", b"5"), member(b"d/a"), b""),
    "numbers with blanks": archive(member(b"d/", b"5"), member(b"d/a"), header(b"d/b", mode=b"   644 ", uid=b"")),
    "a time before 1970": archive(member(b"d/", b"5"), member(b"d/a"), header(b"d/b", mtime=b"\xff" * 12)),
    "a time before 1970, as text": archive(
        member(b"d/", b"5"), member(b"d/a"), extended({b"mtime": b"-1.5"}), member(b"d/b")
    ),
}


@pytest.mark.parametrize("what", FINE)
def test_what_others_take_is_taken(look: Look, what: str) -> None:
    found = look(FINE[what])
    assert found.members in (2, 3)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_python_makes_archives_of_all_these(look: Look, form: int) -> None:
    assert look(tars.by_python(form)).members == 7


def test_a_link_that_leads_nowhere_else_is_fine(look: Look) -> None:
    targets = [b"a", b"./a/../b", b"d/../../d", b"loop", b"d/e/../../..", b"nothing/at/../all"]
    data = archive(
        member(b"d/e/", b"5"), member(b"loop", b"2", target=b"loop"),
        *(member(b"d/e/l%d" % number, b"2", target=target) for number, target in enumerate(targets)),
    )  # fmt: skip
    assert look(data).members == 8


# -- limits -----------------------------------------------------------------------------------------------------------


def test_more_members_than_allowed_are_refused(look: Look) -> None:
    data = gzip.compress(archive(*(member(b"a%d" % number) for number in range(100))), 1)
    assert look(data, Limits(members=100)).members == 100
    corrupt(look, data, "more than 99 members", Limits(members=99))


def test_directories_that_are_only_part_of_names_count_as_members(look: Look) -> None:
    data = archive(*(member(b"d%d/e/f/g/h/i/j/a" % number) for number in range(10)))
    assert look(data, Limits(members=80)).members == 10
    corrupt(look, data, "more than 79 members", Limits(members=79))


def test_more_content_than_allowed_is_refused_before_it_is_read(look: Look) -> None:
    corrupt(look, header(b"a", size=1001), "more than 1000 bytes", Limits(content_bytes=1000))


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_bomb_is_refused_before_it_goes_off(tmp_path: str, codec: str) -> None:
    path = os.path.join(tmp_path, "bomb")
    whole = 1 << 28
    with open(path, "wb") as file:
        packer = subprocess.Popen(["gzip", "-1"] if codec == "gzip" else ["zstd", "-q"], stdin=-1, stdout=file)
        assert packer.stdin is not None
        packer.stdin.write(header(b"a", size=whole))
        for _ in range(whole >> 20):
            packer.stdin.write(bytes(1 << 20))
        packer.communicate(END)
    read = 0

    def moved(size: int) -> None:
        nonlocal read
        read = size

    with opened(path) as descriptor, pytest.raises(SandkeepError) as caught:
        inspect(descriptor, moved=moved)
    assert caught.value.code == "snapshot_corrupt"
    assert "200 times its size" in caught.value.message
    assert read <= 2 << 20
    with opened(path) as descriptor:
        assert inspect(descriptor, Limits(ratio=1 << 40)).content_bytes == whole


def test_pieces_without_number_are_refused(look: Look) -> None:
    corrupt(look, gzip.compress(b"", mtime=0) * 2000 + gzip.compress(PLAIN, mtime=0), "too many small gzip members")


def test_a_window_larger_than_memory_is_refused(look: Look) -> None:
    settings = zstandard.ZstdCompressionParameters(window_log=28, compression_level=1, write_content_size=0)
    engine = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    corrupt(look, engine.compress(PLAIN) + engine.flush(), "128 MiB of memory")


def test_padding_without_end_is_refused(look: Look) -> None:
    corrupt(look, PLAIN + bytes(65 << 20), "follows its end-of-archive mark")


def test_maps_without_end_are_refused(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "MAX_EXTENTS", 100)
    nothing = {b"GNU.sparse.size": b"0", b"GNU.sparse.map": b",".join([b"0"] * 202)}
    corrupt(look, archive(extended(nothing), member(b"a")), "more than 100 pieces")


# -- soaking ----------------------------------------------------------------------------------------------------------


KINDS = {"file": "-", "directory": "d", "symlink": "l", "hard link": "h", "fifo": "p"}


def as_tar_reads_it(path: str) -> list[tuple[str, int, str]] | None:
    """Kind, size and name of each member; None when GNU tar refuses the archive."""
    words = ["tar", "-tf", path, "--quoting-style=c", "--warning=none"]
    short, full = (
        subprocess.run([*words, *more], capture_output=True, env={**os.environ, "LC_ALL": "C"}, check=False)
        for more in ([], ["-v", "--numeric-owner"])
    )
    if short.returncode or full.returncode:
        return None
    told = zip(full.stdout.decode().splitlines(), short.stdout.decode().splitlines(), strict=True)
    found = [(line[0].replace("C", "-"), int(line.split()[2]), name[1:-1]) for line, name in told]
    found = [("d" if kind == "-" and name.endswith("/") else kind, size, name) for kind, size, name in found]
    return [(kind, size, plain(name)) for kind, size, name in found if kind != "V"]


def plain(name: str) -> str:
    return "/".join(part for part in name.split("/") if part not in ("", ".")) or "."


def escaped(name: bytes) -> str:
    letters = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}
    return "".join(
        f"\\{letters[byte]}" if byte in letters else chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}" for byte in name
    )


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(50))
def test_damaged_headers_are_refused_or_mean_what_tar_takes_them_for(tmp_path: str, seed: int) -> None:
    """Headers with the right sum and anything in them."""
    random = Random(seed)
    path = os.path.join(tmp_path, "archive")
    samples = [tars.by_python(form) for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)]
    samples += [data for data in [*(data for data, _ in HOSTILE.values()), *FINE.values()] if data[257:262] == b"ustar"]
    places = [0, 1, 99, 100, 124, 135, 136, 156, 157, 257, 263, 345, 386, 482, 483]
    for _ in range(500):
        data = bytearray(random.choice(samples))
        for _ in range(random.randint(1, 4)):
            begin = random.randrange(len(data) // 512) * 512
            at = begin + random.choice([random.randrange(512), *places])
            data[at] = random.choice(
                [random.randrange(256), data[at] ^ 1 << random.randrange(8), 0x80, 0xFF, *b"0./\0"]
            )
            if random.random() < 0.95:
                data[begin : begin + 512] = tars.summed(data[begin : begin + 512])
        with open(path, "wb") as file:
            file.write(data)
        try:
            with opened(path) as descriptor:
                members = list(CheckedArchive(descriptor, Limits()))
        except SandkeepError as error:
            assert error.code == "snapshot_corrupt"  # noqa: PT017 - it may also be taken
            continue
        theirs = as_tar_reads_it(path)
        ours = [(KINDS[it.kind], it.whole_size, escaped(it.name)) for it in members]
        assert theirs in (None, ours)


@pytest.mark.soak
def test_a_million_entries_take_little_memory(tmp_path: str) -> None:
    path = os.path.join(tmp_path, "archive.tar.gz")
    script = """
import sys, resource
from sandkeep_store.archives.tar.inspect import inspect
from sandkeep_store.archives.tar.limits import Limits
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with open(sys.argv[1], "rb") as archive:
    print(inspect(archive.fileno(), Limits(members=2 * 10**6, ratio=1 << 40)).members)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    with gzip.open(path, "wb", 1) as file:
        for number in range(10**6):
            file.write(member(b"%d/%d/%d" % (number % 100, number % 10_000, number)))
        file.write(END)
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, check=True, text=True)
    members, kilobytes = map(int, done.stdout.split())
    assert members == 10**6
    assert kilobytes < 64 << 10


def test_what_is_said_of_all_members_is_little_and_nothing_else_of_it_is_kept(look: Look) -> None:
    """A thousand headers of a megabyte each would be ten gigabytes in memory, out of a hundred on the wire."""
    unknown = b"".join(tars.record(b"k%06d" % number, b"") for number in range(50_000))
    harmless = [tars.extended(unknown[part * 12 :], b"g") for part in range(20)]
    assert look(archive(*harmless, member(b"a"))).members == 1
    attributes = b"".join(tars.record(b"SCHILY.xattr.user.%06d" % number, b"x") for number in range(5000))
    corrupt(look, archive(tars.extended(attributes, b"g"), member(b"a")), "global headers are too large")


def test_no_file_has_more_attributes_than_the_kernel_lists(look: Look) -> None:
    """Each is a few bytes of an archive that compress to nothing, and a hundred in memory."""
    name = b"user.%05d"
    for count, is_fine in (((1 << 16) // len(name % 0 + b"0"), True), ((1 << 16) // len(name % 0 + b"0") + 1, False)):
        attributes = b"".join(tars.record(b"SCHILY.xattr." + name % number, b"x") for number in range(count))
        data = archive(tars.extended(attributes), member(b"a"))
        if is_fine:
            assert look(data).members == 1
        else:
            corrupt(look, data, "more attributes than a file can have")


def test_a_thousand_headers_for_all_members_take_no_more_memory_than_one(look: Look) -> None:
    def said(part: int) -> bytes:
        return tars.extended(b"".join(tars.record(b"k%d.%05d" % (part, n), b"") for n in range(10_000)), b"g")

    def peak(parts: int) -> int:
        tracemalloc.start()
        try:
            look(archive(*map(said, range(parts)), member(b"a")))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    data_bytes = len(said(0))
    assert peak(8) < peak(1) + 9 * data_bytes + (2 << 20)  # the archive itself, and what is read ahead
