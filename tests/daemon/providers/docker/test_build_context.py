"""What is read of a caller's files before a build: Dockerfiles, what is ignored, and how it is packed."""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from docker.utils.build import PatternMatcher
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from sandkeep.errors import CallerError
from sandkeep.system import ignore
from sandkeepd.providers.common.build_files import read_below
from sandkeepd.providers.docker import build_context, dockerfile
from sandkeepd.providers.docker.dockerfile import read

# -- Dockerfiles ------------------------------------------------------------------------------------------------------

DOCKERFILE = b"""\xef\xbb\xbf# syntax=docker/dockerfile:1
ARG VERSION=3.11
ARG NAME="python:$VERSION" OTHER='x$y'
FROM --platform=linux/amd64 ${NAME}-slim AS Build

RUN apt-get \\
    # a comment in between
    && make\r
COPY --chown=1:1 --from=ada/tools:1 /a /b
FROM scratch
ARG NAME=ignored
COPY --from=build /x /y
COPY --from=0 /x /z
onbuild copy --from=build /x /z
FROM ${MISSING:-alpine} as last
FROM LAST \\
"""


def test_steps_and_images_are_found() -> None:
    found = read(DOCKERFILE)
    assert found.images == ["python:3.11-slim", "ada/tools:1", "alpine"]
    assert [(step.word, step.first_line) for step in found.steps] == [
        ("ARG", 2), ("ARG", 3), ("FROM", 4), ("RUN", 6), ("COPY", 9), ("FROM", 10), ("ARG", 11), ("COPY", 12),
        ("COPY", 13), ("ONBUILD", 14), ("FROM", 15), ("FROM", 16),
    ]  # fmt: skip
    assert found.steps[3].text == "RUN apt-get     && make"


def test_every_stage_is_marked_and_the_steps_are_counted_as_the_engine_does() -> None:
    text, steps = read(DOCKERFILE).marked({"mark": "1"}, {})
    again = read(text.encode())
    assert [step.text for step in again.steps if step.text != "LABEL mark=1"] == [
        s.text for s in read(DOCKERFILE).steps
    ]
    assert [step is None for step in steps] == [step.text == "LABEL mark=1" for step in again.steps]
    assert sum(step is None for step in steps) == 4


def test_bases_are_named_by_their_ids() -> None:
    """The engine looks up no name a second time: by then it may belong to another image."""
    text, _ = read(DOCKERFILE).marked(
        {"mark": "1", "by": "2"}, {"python:3.11-slim": "sha256:0a", "alpine": "sha256:0b"}
    )
    named = [line for line in text.splitlines() if line.startswith(("FROM", "LABEL", "    LAST"))]
    label = "LABEL mark=1 by=2"
    stages = ["FROM --platform=linux/amd64 sha256:0a AS Build", label, "FROM scratch", label]
    assert named == [*stages, "FROM sha256:0b as last", label, "FROM LAST", label]


@pytest.mark.parametrize(
    "text",
    [
        "FROM a", "FROM 0", "FROM sandkeep", "FROM Sandkeep:x", 'FROM "sandkeep:x"', "FROM sandk\\eep:x",
        f"FROM sha256:{'0a' * 32}", f"FROM {'0a' * 32}", "FROM docker.io/library/sandkeep:x",
        "FR\\\nOM \\\n# c\n sandkeep",
        "FROM $X", "FROM ${X:-sandkeep:y}", "FROM ${X-alpine}", "ARG X=sandkeep\nFROM $X", "ARG X=sand\\keep\nFROM $X",
        "ARG A=sandkeep B=$A:x\nFROM $B", "FROM x AS deb\nFROM dee", "FROM deb\nFROM x AS deb", "FROM x\nFROM 0",
        "FROM x \\\u00a0".encode().decode("latin-1"), "FROM x\nCOPY --from=ab a b",
        "FROM x\nCOPY\x0b--from=sandkeep:x a b", "FROM x\nCOPY --fr\"om\"=sandkeep a b",
        "FROM x\nCOPY --from='sandkeep' a b", "FROM x\nONBUILD COPY --from=sandkeep:x a b", "FROM x\nCOPY --from=1 a b",
        "FROM x\nADD --chown=1:1 --from=sandkeep:x a b", "# escape=`\nFROM x", "FROM x\nRUN a\\\\\nFROM y",
        "FROM x\nRUN cat <<EOF\nFROM y\nEOF", "FROM x\nCOPY <<-'E' /a\nE", "RUN x", "", "FROM x\0", "FROM \xff",
        "FROM x\nCMD a \\\n\x1c\nFROM sandkeep", "FROM x\nCMD a \\\n\x1c#\nFROM sandkeep", "FROM x\nFR\xd6M y",
        "FROM x\nRUN a\rFROM sandkeep", "FROM x AS sandkeep\nCOPY --from=sandkeep / /", "FROM x\nCOPY --from=0 / /",
        "ARG B=sandkeep\nARG A=\"x B=one y\"\nFROM x AS one\nFROM $B", "\xef\xbb\xbf\xef\xbb\xbfFROM sandkeep\nFROM x",
        "FROM x\nONBUILD ONBU\xc4\xb0LD COPY a b",
    ],
)  # fmt: skip
def test_what_may_not_be_named_or_could_be_understood_otherwise(text: str) -> None:
    with pytest.raises(CallerError, match="Dockerfile"):
        read(text.encode("latin-1"))


@pytest.mark.parametrize(
    "text", ["FROM x\nRUN echo $((1 << A))", "FROM x\nRUN cat <<<word", "FROM x AS a\nFROM A\nFROM scratch"]
)
def test_what_only_looks_odd_is_taken(text: str) -> None:
    assert read(text.encode()).images == ["x"]


@pytest.mark.parametrize(
    "what",
    [
        "http://h/x", "git@h:x", "git://h/x", "--checksum=sha256:0a https://h/x", "$X", '["ht\\u0074p://h/x", "/"]',
        '["http://h/x","/"]', "a\\b", "a http://h/x",
    ],
)  # fmt: skip
def test_the_engine_fetches_no_files(what: str) -> None:
    for line in (f"ADD --chown=1:1 {what} /", f"ONBUILD ADD {what} /"):
        with pytest.raises(CallerError, match="ADD fetches nothing"):
            read(f"FROM x\n{line}\n".encode())
    with pytest.raises(CallerError, match="ADD fetches nothing"):
        dockerfile.check_triggers([f"ADD {what} /"], may_name_images=True)


@pytest.mark.parametrize("what", ["a.tar /", "a.tar b $WHERE/", '["a.tar", "/"]', "--chown=1:1 a.tar /"])
def test_files_of_the_directory_can_be_added(what: str) -> None:
    assert read(f"FROM x\nADD {what}\n".encode()).images == ["x"]


@given(st.binary(max_size=200) | st.text("FROMARGCOPYRUN \t\n\\#=$`{}:-ax01'\"", max_size=120).map(str.encode))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    try:
        found = read(content)
    except CallerError:
        return
    text, steps = found.marked({"mark": "1"}, dict.fromkeys(found.images, "sha256:0a"))
    assert len(read(text.encode()).steps) == len(steps)


# -- what is ignored --------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "ab", "a.b", "c"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
PARTS = st.sampled_from(["a", "b", "ab", "a.b", "c", "*", "a*", "?", "**", "[ab]", "*.b"])
PATTERNS = st.lists(PARTS, min_size=1, max_size=3).map("/".join) | PATHS.map("!{}".format) | PATHS.map("/{}".format)
"""Exceptions are plain: one such as ``!*/a`` is honoured here also in a directory that is ignored, there it is not."""


def ignoring(top: Path, lines: list[str]) -> set[str]:
    """What of a directory is wanted, as the program says."""
    (top / ".dockerignore").write_text("\n".join(lines))
    done = subprocess.run([sys.executable, "-I", "-S", ignore.__file__, str(top)], capture_output=True, check=True)
    return {os.fsdecode(path).removeprefix("./") for path in done.stdout.split(b"\0") if path} - {".dockerignore"}


@given(paths=st.sets(PATHS, max_size=12), lines=st.lists(PATTERNS, max_size=4))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_patterns_mean_what_they_mean_to_dockers_own_tools(
    tmp_path_factory: pytest.TempPathFactory, paths: set[str], lines: list[str]
) -> None:
    # Below what `**` matches, docker-py forgets that it did if there is an exception; the engine's own tools do not.
    assume(not (any("**" in line for line in lines) and any(line.startswith("!") for line in lines)))
    top = tmp_path_factory.mktemp("tree")
    for path in sorted(paths):
        if not any(other.startswith(f"{path}/") for other in paths):
            (top / path).parent.mkdir(parents=True, exist_ok=True)
            (top / path).touch()
    expected = {path for path in PatternMatcher(lines).walk(str(top)) if not (top / path).is_dir()}
    assert {path for path in ignoring(top, lines) if not (top / path).is_dir()} == expected - {".dockerignore"}


def test_what_is_ignored_can_have_exceptions_in_it(tmp_path: Path) -> None:
    for name in ("a/b/c", "a/b/d", "e", "f/e"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert ignoring(tmp_path, ["# a comment", "", "  a ", "e", "!*/b/c"]) == {"a/b/c", "f", "f/e"}
    assert ignoring(tmp_path, ["**", "!f", "\\e", "[a-c]"]) == {"f", "f/e"}
    assert ignoring(tmp_path, ["!f", "**/f"]) == {"e", "a", "a/b", "a/b/c", "a/b/d"}


@pytest.mark.parametrize("line", ["[z-a]", "[", "a[b"])
def test_a_pattern_that_makes_no_sense_is_told(tmp_path: Path, line: str) -> None:
    (tmp_path / ".dockerignore").write_text(f"a\n{line}\n")
    with pytest.raises(CallerError, match=r"\.dockerignore: line 2"):
        list(build_context.of_context(str(tmp_path), "FROM x\n"))


# -- packing ----------------------------------------------------------------------------------------------------------


def unpacked(pieces: list[bytes]) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
        return {entry.name: entry for entry in archive}


def test_everything_is_packed_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir(mode=0o711)
    (tmp_path / "sub" / "run").write_text("x")
    (tmp_path / "sub" / "run").chmod(0o4751)
    (tmp_path / "-rf").write_text("")
    (tmp_path / "*").write_text("")
    (tmp_path / "line\nbreak").write_text("")
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.link(tmp_path / "sub" / "run", tmp_path / "sub" / "same")
    for listed in (False, True):
        if listed:
            (tmp_path / ".dockerignore").write_text("nothing\n")
        found = unpacked(list(build_context.of_context(str(tmp_path), "FROM x\n")))
        names = {name.removeprefix("./") for name in found} - {"", "."}
        ours = {build_context.OUR_DOCKERFILE, ".dockerignore"}
        assert names == {"sub", "sub/run", "sub/same", "-rf", "*", "line\nbreak", "link", *ours}
        assert found["./link"].linkname == "/etc/passwd"
        assert {entry.uid for entry in found.values()} == {0}
        assert found["./sub"].mode & 0o777 == 0o711


def test_files_of_ours_come_first_and_take_the_place_of_others(tmp_path: Path) -> None:
    (tmp_path / build_context.OUR_DOCKERFILE).write_text("FROM evil\n")
    (tmp_path / ".dockerignore").write_text("b")
    (tmp_path / "a").write_text("")
    pieces = list(build_context.of_context(str(tmp_path), "FROM x\n"))
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
        names = [name.removeprefix("./") for name in archive.getnames()]
        assert names == [build_context.OUR_DOCKERFILE, ".dockerignore", "a"]
        file = archive.extractfile(build_context.OUR_DOCKERFILE)
        assert file is not None
        assert file.read() == b"FROM x\n"
        file = archive.extractfile(".dockerignore")
        assert file is not None
        assert file.read() == f"b\n{build_context.OUR_DOCKERFILE}\n".encode()


def test_a_directory_is_packed_under_its_name(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / ".dockerignore").write_text("*\n")
    (tmp_path / "other").touch()
    found = unpacked(list(build_context.of_directory(str(tmp_path / "tree"), "FROM x\n")))
    assert {name.removeprefix("./") for name in found} == {
        build_context.OUR_DOCKERFILE, ".dockerignore", "tree", "tree/.dockerignore",
    }  # fmt: skip


def test_packing_that_is_given_up_leaves_no_program(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 30)
    pieces = build_context.of_context(str(tmp_path), "FROM x\n")
    for _ in range(4):
        next(pieces)
    pieces.close()
    assert (
        subprocess.run(["pgrep", "-f", "--", f"--directory {tmp_path}"], capture_output=True, check=False).returncode
        == 1
    )


def test_a_file_below_is_read_and_none_outside(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "sub").mkdir(parents=True)
    (tmp_path / "outside").write_text("secret")
    (top / "file").write_text("12345")
    (top / "sub" / "up").symlink_to("../file")
    (top / "root").symlink_to("/file")
    os.mkfifo(top / "fifo")
    for bad in ("../outside", "sub/../../outside", "none", "sub", "fifo"):
        assert read_below(str(top), bad, 10) is None
    (top / "out").symlink_to("../outside")
    assert read_below(str(top), "out", 10) is None
    for good in ("file", "sub/up", "root", "sub/../file"):
        assert read_below(str(top), good, 10) == b"12345"
    assert read_below(str(top), "file", 3) == b"1234"
