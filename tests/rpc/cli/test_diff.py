"""`sandkeep diff`, as it is typed, against a real daemon: what a sandbox changed, and that it drives no terminal."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.expect import until

from sandkeep.cli.display import changes, output, paths
from sandkeep.model import Diff, FileChange

pytestmark = pytest.mark.needs("bwrap")

HOSTILE = "evil\n\x1b]0;owned\x07"
QUOTED = r'"evil\n\033]0;owned\007"'
CHANGE = """
sed -i 's/line 3$/LINE 3/' text
chmod 755 run.sh
rm gone
mkdir sub; echo new >sub/new
rm kind; ln -s text kind
printf '\\000\\001' >binary
printf 'red\\033[31m\\tend\\r\\n' >"$(printf 'evil\\n\\033]0;owned\\007')"
: >"$(printf '\\377')"
"""


@pytest.fixture(scope="module")
def boxes(client: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The image of two sandboxes: one is `changed`, the other is `same` as at the beginning."""
    source = tmp_path_factory.mktemp("source")
    (source / "text").write_text("".join(f"line {number}\n" for number in range(20)))
    for name in ("run.sh", "gone", "kind"):
        (source / name).write_text(f"{name}\n")
        (source / name).chmod(0o644)
    image = str(client.image.create(str(source)).image_id)
    for name in ("changed", "same"):
        client.sandbox.create(image, name=name)
    assert client.sandbox.exec("changed", ["sh", "-c", CHANGE]).exit_code == 0
    yield image
    for name in ("changed", "same"):
        client.sandbox.terminate(name)


def said(done: "subprocess.CompletedProcess[bytes]", code: int = 0) -> str:
    assert done.returncode == code, done.stderr
    return str(done.stdout.decode())


def test_a_line_for_each_path_has_what_changed(cli: Any, boxes: str) -> None:
    assert said(cli("diff", "changed")).splitlines() == [
        "A  binary", f"A  {QUOTED}", "D  gone", "M  kind  (file -> symlink)", "M  run.sh  (mode 644 -> 755)", "A  sub/",
        "A  sub/new", "M  text", 'A  "\\377"',
    ]  # fmt: skip
    assert said(cli("diff", "same")) == ""
    assert (
        said(cli("branch", "diff", "changed"))
        == said(cli("sandbox", "diff", "changed"))
        == said(cli("diff", "changed"))
    )


def test_paths_alone_are_one_line_each(cli: Any, boxes: str) -> None:
    assert said(cli("diff", "changed", "--name-only")).splitlines() == [
        "binary", QUOTED, "gone", "kind", "run.sh", "sub", "sub/new", "text", '"\\377"',
    ]  # fmt: skip


def test_only_some_paths(cli: Any, boxes: str) -> None:
    assert said(cli("diff", "changed", "--", "sub", "text")) == "A  sub/\nA  sub/new\nM  text\n"
    assert said(cli("diff", "changed", "same", "--name-only", "--", "text")) == "text\n"
    assert said(cli("diff", "--name-only", "changed", "--", "--stat")) == ""  # which is a path there


def test_another_sandbox_an_image_and_a_snapshot(cli: Any, client: Any, boxes: str) -> None:
    """From the first to the second, as git does, whichever of them is the sandbox."""
    assert "D  gone\n" in said(cli("diff", "same", "changed"))
    assert "A  gone\n" in said(cli("diff", "changed", "same"))
    assert "D  gone\n" in said(cli("diff", boxes, "changed"))
    assert "A  gone\n" in said(cli("diff", "changed", boxes))
    patch = said(cli("diff", "same", "changed", "-u", "--", "text"))
    assert "-line 3\n+LINE 3\n" in patch
    assert "-LINE 3\n+line 3\n" in said(cli("diff", "changed", boxes, "-u", "--", "text"))
    snapshot = client.snapshot.create("changed").snapshot_id
    assert said(cli("diff", "changed", snapshot)) == said(cli("diff", snapshot, "changed")) == ""
    for words, argument in ((("changed", "nothing"), b"OTHER: "), (("nothing", "changed"), b"SANDBOX: ")):
        done = cli("diff", *words)
        assert (done.returncode, done.stdout, b"[not_found]" in done.stderr) == (1, b"", True)
        assert argument + b"there is no sandbox, snapshot or image 'nothing'" in done.stderr


def test_statistics(cli: Any, boxes: str) -> None:
    lines = said(cli("diff", "changed", "--stat", "--", "text", "binary", "gone", "run.sh")).splitlines()
    assert lines == [
        " binary | Bin 2 B",
        " gone   |   1 -",
        " run.sh |   0   (mode 644 -> 755)",
        " text   |   2 +-",
        " 4 files changed, 1 insertion(+), 2 deletions(-)",
    ]
    assert said(cli("diff", "same", "--stat")) == ""


def test_a_patch_has_no_control_characters(cli: Any, boxes: str) -> None:
    done = cli("diff", "changed", "-u")
    text = said(done)
    assert "-line 3\n+LINE 3\n line 4\n" in text
    assert f'+++ "b/{QUOTED[1:]}\n' in text
    assert "+red�[31m\tend\r\n" in text
    assert not re.search("[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f]", text)
    assert b"control characters were replaced" in done.stderr
    assert cli("diff", "changed", "-u", "--", "text").stderr == b""
    [document] = [json.loads(cli("diff", "changed", "-u", "--json").stdout)]
    assert "+red\x1b[31m\tend\r\n" in document["unified"]
    assert [file["path_bytes"] for file in document["files"] if file.get("path_bytes")] == ["/w=="]


def test_a_patch_is_coloured_as_git_does(cli: Any, boxes: str) -> None:
    shown = said(cli("diff", "changed", "-u", "--color", "always", "--", "text")).splitlines()
    assert shown[0] == "\x1b[1mdiff --git a/text b/text\x1b[0m"
    assert "\x1b[31m-line 3\x1b[0m" in shown
    assert "\x1b[32m+LINE 3\x1b[0m" in shown
    assert " line 4" in shown
    assert any(line.startswith("\x1b[36m@@ ") for line in shown)
    assert not re.search("\x1b(?!\\[(0|1|31|32|36)m)", said(cli("diff", "changed", "-u", "--color", "always")))


def test_a_patch_can_be_applied(cli: Any, boxes: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("".join(f"line {number}\n" for number in range(20)))
    patch = cli("diff", "changed", "-u", "--", "text", "sub/new").stdout
    subprocess.run(["git", "apply", "-"], input=patch, cwd=tmp_path, check=True)
    assert "LINE 3\n" in (tmp_path / "text").read_text()
    assert (tmp_path / "sub/new").read_text() == "new\n"


def test_the_exit_code_tells_whether_there_are_differences(cli: Any, boxes: str) -> None:
    assert cli("diff", "changed").returncode == 0
    assert cli("diff", "changed", "--exit-code").returncode == 1
    assert cli("diff", "changed", "--exit-code", "--json").returncode == 1
    assert cli("diff", "same", "--exit-code").returncode == 0
    done = cli("diff", "nobody", "--exit-code", "--json")
    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (125, "not_found")
    assert cli("diff").returncode == 2


def test_other_sandboxes_are_completed(cli: Any, boxes: str) -> None:
    for begun, whole in ((boxes[:-1], boxes), ("sa", "same")):
        line = f"sandkeep diff changed {begun}"
        found = until(lambda line=line: cli(line, "", env={"_SANDKEEP_COMPLETE": "bash"}).stdout)
        assert found == f"word\t{whole}\n".encode()


# -- text alone -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"plain file", "plain file"),
        ("é世界".encode(), "é世界"),
        (b"a\nb\tc", r'"a\nb\tc"'),
        (b'say "hi" \\', r'"say \"hi\" \\"'),
        (b"\xff\xc3\xa9", '"\\377é"'),
        ("\u202egnp.exe".encode(), r'"\342\200\256gnp.exe"'),
        ("\x9b31m".encode(), r'"\302\23331m"'),
    ],
)
def test_a_path_is_quoted_as_git_does(raw: bytes, shown: str) -> None:
    assert paths.quote_bytes(raw) == shown


def test_lines_keep_tabs_and_dos_ends_alone() -> None:
    assert paths.content("a\tb\r") == "a\tb\r"
    assert paths.content("a\rb\x1b[2J\u202e\r") == "a�b�[2J�\r"


def change(path: str, added: int | None, removed: int | None) -> FileChange:
    return FileChange(
        path=path, change="changed", kind="file", mode=0o644, added_lines=added, removed_lines=removed, size_bytes=9
    )


def test_bars_have_room_and_none_is_lost() -> None:
    files = [change("much", 3000, 1000), change("little", 0, 1), change("x" * 200, 1, 0), change("binary", None, None)]
    diff = Diff(sandbox_id="a", base_id="b", files=files, added=0, changed=4, deleted=0)
    lines = [*changes.stat_lines(diff, 60)]
    assert max(map(len, lines)) <= 60
    assert re.fullmatch(r" much +\| 4000 \+{7,}-{2,}", lines[0])
    assert re.fullmatch(r" little +\|    1 -", lines[1])
    assert "…" in lines[2]
    assert "x" * 200 in [*changes.stat_lines(diff, None)][2]
    assert lines[-1] == " 4 files changed, 3001 insertions(+), 1001 deletions(-)"


def test_a_removed_line_that_looks_like_a_header_is_a_removed_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "colour", "always")
    shown = [*changes.patch_lines("--- a/x\n+++ b/x\n@@ -1 +1 @@\n--- a/y\n+++ b/y\n")]
    assert [line[:5] for line in shown] == ["\x1b[1m-", "\x1b[1m+", "\x1b[36m", "\x1b[31m", "\x1b[32m"]
