"""Unified diffs: git applies them, and gets the other tree."""

import os
import subprocess
from random import Random
from typing import Any

import pytest
from tests.store.merging.stacks import DIRECTORY, Tree, bench, complete, file, grow, link, read, write

from sandkeep_store.merging.compare import changes
from sandkeep_store.merging.unified import LineCounts, line_counts, unified


def diffs(before: Any, after: Any, most_bytes: int = 1 << 20) -> list[tuple[bytes, bool]]:
    with bench() as at:
        old, new = at.plain(before), at.plain(after)
        found = changes(old, new)
        return [unified(old.view, new.view, name, change, most_bytes) for name, change in found.items()]


def files_alone(found: Tree) -> Tree:
    """Reduce a tree to what git knows: no directories, no modes but one bit, and text."""
    return complete({
        name: one if one[0] == "symlink" else (one[0], 0o755 if one[1] & 0o100 and one[1] & 1 else 0o644, one[2])
        for name, one in found.items()
        if one[0] == "symlink" or (one[0] == "file" and b"\0" not in one[2])
    })  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_git_applies_them(seed: int) -> None:
    random = Random(seed)
    long = b"".join(b"%d\n" % random.randrange(30) for _ in range(60))
    before = files_alone(grow(random, {b"a": long, b"d/e/f": long}, 10))
    after = files_alone(grow(random, before, 9))
    with bench() as at:
        old, new, top = at.plain(before), at.plain(after), at.new()
        write(top, before)
        patch = b""
        for name, change in changes(old, new).items():
            if "directory" not in {entry.kind for entry in (change.before, change.after) if entry}:
                patch += unified(old.view, new.view, name, change)[0]
            elif change.before and change.after:
                return  # a file against a directory is nothing for git apply
        if patch:
            environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CEILING_DIRECTORIES": at.root}
            argv = ["git", "apply", "--whitespace=nowarn", "-"]
            subprocess.run(argv, cwd=top, input=patch, env=environment, check=True, capture_output=True)
        assert {k: v for k, v in read(top).items() if v[0] != "directory"} == {
            k: v for k, v in after.items() if v[0] != "directory"
        }


def test_one_change() -> None:
    before = b"".join(b"%d\n" % number for number in range(20))
    after = before.replace(b"5\n", b"five\n", 1).replace(b"19\n", b"19")
    expected = (
        b"diff --git a/f b/f\nold mode 100644\nnew mode 100755\n--- a/f\n+++ b/f\n"
        b"@@ -3,7 +3,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n"
        b"@@ -17,4 +17,4 @@\n 16\n 17\n 18\n-19\n+19\n\\ No newline at end of file\n"
    )
    assert diffs({b"f": before}, {b"f": file(after, 0o755)}) == [(expected, False)]


def test_hunks_that_share_context_are_one() -> None:
    before = b"".join(b"%d\n" % number for number in range(20))
    for distance, count in ((4, 1), (7, 1), (8, 2)):
        after = before.replace(b"\n3\n", b"\nx\n").replace(b"\n%d\n" % (3 + distance), b"\ny\n")
        assert diffs({b"f": before}, {b"f": after})[0][0].count(b"\n@@ ") == count


def test_new_deleted_binary_links_and_kinds() -> None:
    assert diffs({}, {b"f": b"x\n"})[0][0] == (
        b"diff --git a/f b/f\nnew file mode 100644\n--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+x\n"
    )
    assert diffs({b"f": b""}, {})[0][0] == b"diff --git a/f b/f\ndeleted file mode 100644\n"
    assert diffs({b"f": b"\0"}, {b"f": b"\0\0"})[0][0] == b"diff --git a/f b/f\nBinary files a/f and b/f differ\n"
    assert b"-x\n\\ No newline at end of file\n+y\n" in diffs({b"l": link(b"x")}, {b"l": link(b"y")})[0][0]
    assert diffs({b"l": link(b"x")}, {b"l": b"x\n"})[0][0].count(b"diff --git") == 2
    assert diffs({}, {b"d": DIRECTORY})[0][0] == b"diff --git a/d b/d\nnew file mode 040755\n"
    assert diffs({b"f": b"x"}, {b"f": file(b"x", 0o600)})[0][0].endswith(b"\nnew mode 100600\n")


def test_names_make_no_lines_of_their_own() -> None:
    assert diffs({}, {b'a\n"\xff': b""})[0][0].startswith(b'diff --git "a/a\\n\\"\\377" "b/a\\n\\"\\377"\n')


def test_long_diffs_are_cut() -> None:
    [(text, is_cut)] = diffs({}, {b"f": b"line\n" * 1000}, most_bytes=200)
    assert is_cut
    assert len(text) <= 200
    assert text.endswith(b"+line\n")


def test_lines_are_counted() -> None:
    with bench() as at:
        old = at.plain({b"f": b"1\n2\n3\n", b"b": b"\0", b"m": b"x\n"})
        new = at.plain({b"f": b"1\n3\n4\n5\n", b"b": b"\0\0", b"n": b"a\nb", b"m": file(b"x\n", 0o755)})
        found = {name: line_counts(old.view, new.view, name, one) for name, one in changes(old, new).items()}
    assert found == {b"b": None, b"f": LineCounts(2, 1), b"m": LineCounts(0, 0), b"n": LineCounts(2, 0)}
