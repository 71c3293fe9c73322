"""`sandkeep branch`, as it is typed, against a real daemon, with real directories and real git."""

import itertools
import json
import os
import pty
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.expect import until
from tests.support.patience import patient
from tests.support.printed import said

from sandkeep.cli.commands import merges
from sandkeep.cli.commands.merges import PathAndWord
from sandkeep.cli.display import lineage, timeline
from sandkeep.cli.options import Frontend
from sandkeep.model import Branch, Conflict, ConflictList, ConflictSide, Event, Merge, Merged

pytestmark = pytest.mark.needs("bwrap")

LINES = "".join(f"line {number}\n" for number in range(20))
HOSTILE = "evil\n\x1b]0;owned\x07"
QUOTED = r'"evil\n\033]0;owned\007"'
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def image(client: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    source = tmp_path_factory.mktemp("source")
    fill(source)
    return str(client.image.create(str(source)).image_id)


def fill(source: Path) -> Path:
    """Write the files that all branches begin with."""
    (source / "dir").mkdir(parents=True)
    (source / "text").write_text(LINES)
    (source / "dir/old").write_text("old\n")
    (source / "both").write_text("base\n")
    (source / "run.sh").write_text("run\n")
    for place in (source, *source.rglob("*")):
        place.chmod(0o755 if place.is_dir() else 0o644)
    return source


Branches = Callable[..., list[str]]


@pytest.fixture
def branches(client: Any, image: str) -> Iterator[Branches]:
    """Makes branches of the image, or of a directory, with a script run in each; ends all of the daemon's later."""

    def make(*scripts: str, **begin: Any) -> list[str]:
        number = next(NUMBERS)
        names = [f"b{number}-{letter}" for letter in "abcdef"[: len(scripts)]]
        client.branch.create(**(begin or {"image_id": image}), count=len(names), names=names)
        for name, script in zip(names, scripts, strict=True):
            assert client.sandbox.exec(name, ["sh", "-ec", script]).exit_code == 0
        return names

    yield make
    for sandbox in client.sandbox.list().sandboxes:
        client.branch.remove(sandbox.sandbox_id)


def refused(done: "subprocess.CompletedProcess[bytes]", code: str) -> str:
    assert (done.returncode, done.stdout) == (1, b""), done
    assert f"[{code}]" in done.stderr.decode()
    return str(done.stderr.decode())


def conflicted(done: "subprocess.CompletedProcess[bytes]") -> tuple[str, str]:
    """The id of a merge that has conflicts, and how they are explained."""
    merge_id, explained = said(done, 1), done.stderr.decode()
    assert merge_id.startswith("mrg_")
    assert "[merge_conflict]" in explained
    return merge_id, explained


def cat(cli: Any, sandbox: str, path: str) -> str:
    return said(cli("exec", sandbox, "--", "cat", path))


# -- create, ls, rm ---------------------------------------------------------------------------------------------------


def test_branches_of_a_directory_an_image_a_snapshot_and_a_sandbox(
    cli: Any, client: Any, image: str, branches: Branches, tmp_path: Path
) -> None:
    (fill(tmp_path / "src") / "left-out").mkdir()
    made = said(
        cli("branch", "create", ".", "one", "two", "--ignore", "left-out", "--label", "a=b", cwd=tmp_path / "src")
    )
    assert made.split() == ["one", "two"]
    assert said(cli("exec", "two", "--", "ls")).split() == ["both", "dir", "run.sh", "text"]
    assert client.sandbox.get("one").spec.labels == {"a": "b"}
    for word in ("src", "one"):
        (tmp_path / word).mkdir(exist_ok=True)
        done = cli("branch", "create", word, cwd=tmp_path)
        assert done.returncode == 2
        assert f"give ./{word} for the directory" in " ".join(done.stderr.decode().split())
    (tmp_path / "one").rmdir()
    [unnamed] = said(cli("branch", "create", image)).split()
    assert unnamed.startswith("sbx_")
    said(cli("exec", "one", "--", "touch", "mine"))
    said(cli("branch", "create", "one", "of-one"))
    snapshot = client.snapshot.create("one").snapshot_id
    document = json.loads(said(cli("branch", "create", snapshot, "--count", "2", "--json")))
    assert (document["source_id"], len(document["sandboxes"])) == (snapshot, 2)
    for name in ("of-one", document["sandboxes"][1]["sandbox_id"]):
        assert "mine" in said(cli("exec", name, "--", "ls"))
    assert said(cli("branch", "rm", "one", unnamed)).split()[1] == unnamed
    refused(cli("branch", "rm", "nobody"), "not_found")


@pytest.mark.parametrize(
    "words",
    [
        ("create", ""),
        ("create", "img_x", "--ignore", "x"),
        ("create", "box", "--provider", "local"),
        ("create", ".", "one", "two", "--count", "3"),
        ("merge",),
        ("merge", "a", "b", "--policy", "mine"),
        ("merge", "a", "b", "--policy", "ours:"),
        ("merge", "a", "b", "--take", "path"),
        ("resolve", "mrg_x"),
        ("resolve", "mrg_x", "path"),
        ("resolve", "mrg_x", "--file", "path=/nonexistent/file"),
        ("resolve", "mrg_x", "--hunk", "path=branch"),
        ("resolve", "mrg_x", "--hunk", "path:0=branch"),
        ("commit", "a", ""),
        ("commit", "a", ".", "-m", "message"),
        ("commit", "a", ".", "--git-branch", "name"),
        ("commit", "a", ".", "--author", "A <a@b>"),
        ("commit", "a", ".", "--git"),
    ],
)
def test_wrong_usage_does_nothing(cli: Any, words: tuple[str, ...]) -> None:
    done = cli("branch", *words)
    assert (done.returncode, done.stdout) == (2, b""), done


def test_the_tree_of_branches(cli: Any, client: Any, branches: Branches) -> None:
    a, b = branches("echo a >a", "echo b >b")
    said(cli("branch", "merge", b, a, "--name", "merged"))
    said(cli("branch", "create", "merged", "next"))
    said(cli("exec", a, "--", "sh", "-c", "echo A >both"))
    said(cli("exec", b, "--", "sh", "-c", "echo B >both"))
    merge_id, _ = conflicted(cli("branch", "merge", a, b))
    rows = [re.split(r"(?<=\w)\s{2,}", line) for line in said(cli("branch", "ls")).splitlines()]
    image_id = client.sandbox.get(a).image_id
    assert [(row[0], row[1:2], row[3:4]) for row in rows] == [
        ("BRANCH", ["STATUS"], ["FROM"]),
        (image_id, [], []),
        (f"|- {a}", ["running"], [client.sandbox.get(a).sandbox_id]),
        (f"|- {b}", ["running"], [client.sandbox.get(b).sandbox_id]),
        ("|- merged", ["running"], [f"merge of {a}, {b}"]),
        ("|  `- next", ["running"], ["fork of merged"]),
        (f"`- {merge_id}", ["conflicted"], [f"merge of {a}, {b}: 1 conflict"]),
    ]
    listed = json.loads(said(cli("branch", "ls", "--json")))
    assert [(each["name"], each["base"]) for each in listed] == [
        (a, "image"), (b, "image"), ("merged", "merge"), ("next", "fork"),
    ]  # fmt: skip
    said(cli("branch", "rm", "merged"))
    assert re.search(r"\|- merged +stopped", said(cli("branch", "ls")))  # as `next` came from it
    said(cli("branch", "rm", "next"))
    assert "merged " not in said(cli("branch", "ls"))
    assert "merged " in said(cli("branch", "ls", "--all"))
    assert said(cli("branch", "abandon", merge_id)) == merge_id


def test_a_tree_has_lines_where_there_is_unicode() -> None:
    def branch(name: str, second: int, *parents: str, base: Any = "image") -> Branch:
        return Branch(
            sandbox_id=name, status="running", provider="local", owner="uid:0", base=base, base_id="img",
            created_at=f"2026-01-01T00:00:{second:02}Z", image_id="img", parents=[*parents],
        )  # fmt: skip

    found = [
        branch("a", 1), branch("b", 2), branch("c", 3, "a", base="fork"), branch("d", 4, "a", base="fork"),
        branch("m", 5, "c", "d", base="merge"), branch("n", 6, "b", "m", base="merge"),
        branch("o", 7, "gone", base="fork"),
    ]  # fmt: skip
    shown = [(row.label, row.origin) for row in lineage.rows(found, [], unicode=True)]
    assert shown == [
        ("img", ""), ("├─ a", ""), ("│  ├─ c", "fork of a"), ("│  ├─ d", "fork of a"), ("│  └─ m", "merge of c, d"),
        ("├─ b", ""), ("├─ n", "merge of b, m"), ("└─ o", "fork of gone"),
    ]  # fmt: skip
    deep = [branch(str(number), 0, *([str(number - 1)] if number else []), base="fork") for number in range(3000)]
    assert len([*lineage.rows(deep, [], unicode=False)]) == 3001
    of_others = Merge(
        merge_id="mrg", status="conflicted", owner="uid:0", created_at="2026-01-01T00:00:09Z", branches={"x": "gone"},
        base_id="snp", policy="fail",
    )  # fmt: skip
    assert [row.label for row in lineage.rows([], [of_others], unicode=False)] == ["snp", "`- mrg"]


@pytest.mark.parametrize(("locale", "sign"), [("C.UTF-8", "└─ "), ("POSIX", "`- ")])
def test_a_terminal_has_lines_that_it_knows(shared_daemon: Any, branches: Branches, locale: str, sign: str) -> None:
    [a] = branches("true")
    ours, its = pty.openpty()
    env = {**shared_daemon.env, "LC_ALL": locale, "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": ""}
    subprocess.run(
        [*shared_daemon.command, "branch", "ls"], env=env, stdin=its, stdout=its, timeout=patient(60), check=True
    )
    os.close(its)
    with open(ours, "rb", buffering=0) as terminal:
        assert f"{sign}{a} " in terminal.read(65536).decode()


# -- merge ------------------------------------------------------------------------------------------------------------


def test_a_merge_prints_its_sandbox(cli: Any, client: Any, branches: Branches) -> None:
    a, b = branches("sed -i 's/line 3$/LINE 3/' text", "sed -i 's/line 15$/LINE 15/' text; rm dir/old")
    made = said(cli("branch", "merge", a, b, "--name", "sum", "--label", "k=v"))
    assert made == client.sandbox.get("sum").sandbox_id
    assert client.sandbox.get("sum").spec.labels == {"k": "v"}
    assert "LINE 3\n" in cat(cli, "sum", "text")
    assert "LINE 15\n" in cat(cli, "sum", "text")
    document = json.loads(said(cli("branch", "merge", a, b, "--json")))
    assert (document["merge"]["status"], document["conflicts"]) == ("ready", [])
    assert re.search(rf"(?m) sum +{a}, {b}$", said(cli("branch", "merges")))
    listed = json.loads(said(cli("branch", "merges", "--json")))
    assert document["merge"]["merge_id"] in [each["merge_id"] for each in listed]


def test_policies_and_takes(cli: Any, branches: Branches) -> None:
    a, b = branches("echo A >both; echo a >run.sh", "echo B >both; echo b >run.sh")
    ours = said(cli("branch", "merge", a, b, "--policy", f"ours:{a}", "--take", f"run.sh={b}"))
    assert (cat(cli, ours, "both"), cat(cli, ours, "run.sh")) == ("A", "b")
    union = said(cli("branch", "merge", a, b, "--policy", "union"))
    assert sorted(cat(cli, union, "both").split()) == ["A", "B"]
    marked = said(cli("branch", "merge", a, b, "--policy", "markers"))
    assert "<<<<<<<" in cat(cli, marked, "both")


def test_conflicts_are_explained_and_the_code_tells(cli: Any, branches: Branches) -> None:
    a, b = branches(
        "sed -i 's/line 15$/one\\tof \\033[31mA/' text; rm dir/old; echo a >\"$(printf 'evil\\n\\033]0;owned\\007')\"",
        "sed -i 's/line 15$/from B/' text; echo o >dir/old; echo b >\"$(printf 'evil\\n\\033]0;owned\\007')\"",
    )
    merge_id, explained = conflicted(cli("branch", "merge", a, b, "--name", "never"))
    for words in (
        "text  (content)\n", "  line 16\n", "base | line 15\n", f"    {b} | from B\n", "dir/old  (deleted)\n",
        f"  {a}  nothing\n", f"  {b}  file, 2 B, mode 644\n", f"{QUOTED}  (added)\n", "3 conflicts",
        f"sandkeep branch resolve {merge_id} PATH=BRANCH",
    ):  # fmt: skip
        assert words in explained, words
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", explained)
    shown = said(cli("branch", "conflicts", merge_id))
    assert explained.startswith(shown)
    assert "\x1b[1mtext\x1b[0m" in said(cli("branch", "conflicts", merge_id, "--color", "always"))
    found = json.loads(said(cli("branch", "conflicts", merge_id, "--json")))
    assert [(each["path"], each["kind"]) for each in found] == [
        ("dir/old", "deleted"), (HOSTILE, "added"), ("text", "content"),
    ]  # fmt: skip
    document = json.loads(said(cli("branch", "merge", a, b, "--json"), 1))
    assert (document["merge"]["status"], document["sandbox"]) == ("conflicted", None)
    assert [each["path"] for each in document["conflicts"]] == ["dir/old", HOSTILE, "text"]
    refused(cli("get", "never"), "not_found")


def test_json_has_all_conflicts_also_beyond_the_first_page(capfd: pytest.CaptureFixture[str]) -> None:
    several = [
        Conflict(path=f"path{number}", kind="added", sides=[ConflictSide(branch="base")]) for number in range(99)
    ]
    merge = Merge(
        merge_id="mrg", status="conflicted", owner="uid:0", created_at="2026-01-01T00:00:09Z", branches={"x": "sbx"},
        base_id="img", policy="fail", conflicts=99,
    )  # fmt: skip
    merged = Merged(merge=merge, conflicts=several[:60])

    def conflicts(merge_id: str, after: int = 0) -> ConflictList:
        assert merge_id == "mrg"
        return ConflictList(conflicts=several[after : after + 50], next=after + 50 if after == 0 else None)

    client: Any = SimpleNamespace(branch=SimpleNamespace(conflicts=conflicts))
    assert merges._answer(Frontend(None, as_json=True), client, merged) == 1
    assert len(json.loads(capfd.readouterr().out)["conflicts"]) == 99
    assert merges._answer(Frontend(None, as_json=False), client, merged) == 1
    shown = capfd.readouterr()
    assert (shown.out, shown.err.count("(added)")) == ("mrg\n", 50)
    assert "(49 more: see `sandkeep branch conflicts mrg`)" in shown.err


def test_a_merge_is_resolved_path_by_path(cli: Any, branches: Branches, tmp_path: Path) -> None:
    change = "echo {0} >both; echo {0} >run.sh; echo {0} >dir/old; echo {0} >added; sed -i 's/line 9$/{0}/' text"
    a, b = branches(change.format("A"), change.format("B"))
    merge_id, _ = conflicted(cli("branch", "merge", a, b, "--name", "sum"))
    _, explained = conflicted(cli("branch", "resolve", merge_id, f"both={a}"))
    assert "4 conflicts" in explained
    (tmp_path / "mine").write_bytes(b"both of them\n\xff")
    words = ("--delete", "dir/old", "--file", f"added={tmp_path / 'mine'}", "text=base")
    _, explained = conflicted(cli("branch", "resolve", merge_id, *words))
    assert explained.startswith("run.sh  (content)\n")
    refused(cli("branch", "resolve", merge_id, "--rest", "nobody"), "not_found")
    refused(cli("branch", "resolve", merge_id, f"both={b}"), "not_found")
    made = said(cli("branch", "resolve", merge_id, "--rest", b))
    assert made.startswith("sbx_")
    assert [cat(cli, "sum", path) for path in ("both", "run.sh")] == ["A", "B"]
    assert cli("exec", "sum", "--", "cat", "added").stdout == b"both of them\n\xff"
    assert cat(cli, "sum", "text") == LINES.strip()
    assert cli("exec", "sum", "--", "cat", "dir/old").returncode == 1


def test_the_rest_leaves_what_was_decided_otherwise(cli: Any, client: Any, branches: Branches) -> None:
    name = "$(printf 'evil\\n\\377')"
    a, b = branches(*(f'echo {letter} >both; echo {letter} >run.sh; echo {letter} >"{name}"' for letter in "AB"))
    merge_id, _ = conflicted(cli("branch", "merge", a, b, "--name", "sum"))
    by_id = client.sandbox.get(a).sandbox_id  # as a name, or as an id
    raw = b"evil\n\xff".decode(errors="surrogateescape")
    assert said(cli("branch", "resolve", merge_id, f"{raw}={by_id}", "both=base", "--rest", b, "--json"))
    assert [cat(cli, "sum", path) for path in ("both", "run.sh")] == ["base", "B"]
    assert said(cli("exec", "sum", "--", "sh", "-c", "cat evil*")) == "A"
    refused(cli("branch", "resolve", merge_id, "both=base"), "conflict")


FIVE = ["1s/.*/b1/", "5s/.*/b2/", "9s/.*/b3/", "3s/.*/b4/", "3s/.*/b5/"]


def resolved_text(cli: Any, name: str) -> list[str]:
    return [cat(cli, name, "text").splitlines()[line - 1] for line in (1, 3, 5, 9)]


def test_clean_edits_of_other_branches_stay(cli: Any, branches: Branches, project: Path) -> None:
    made = branches(*(f"sed -i '{each}' text" for each in FIVE), source=str(project))
    b1, b2, b3, b4, b5 = made
    merge_id, _ = conflicted(cli("branch", "merge", *reversed(made), "--name", "hunk"))
    done = cli("branch", "resolve", merge_id, f"text={b5}")
    assert said(done).startswith("sbx_")
    assert b"dropped" not in done.stderr
    assert resolved_text(cli, "hunk") == ["b1", "b5", "b2", "b3"]
    [origin] = json.loads(said(cli("branch", "blame", merge_id, "--json")))
    assert (origin["how"], origin["branches"], origin["choice"]) == ("resolved", [b1, b2, b3, b5], b5)
    said(cli("branch", "commit", "hunk", ".", cwd=project))
    assert (project / "text").read_text() == cat(cli, "hunk", "text") + "\n"
    merge_id, _ = conflicted(cli("branch", "merge", *made, "--name", "whole"))
    done = cli("branch", "resolve", merge_id, "--whole", f"text={b5}")
    assert resolved_text(cli, "whole") == ["line 0", "b5", "line 4", "line 8"]
    listed = ", ".join(f"{name} (1 hunk, 2 lines)" for name in (b1, b2, b3, b4))
    assert f"dropped  text: {listed}\n" in done.stderr.decode()
    [origin] = json.loads(said(cli("branch", "blame", merge_id, "--json")))
    assert (origin["branches"], origin["choice"]) == ([b5], f"{b5} (whole)")


def test_single_hunks_are_decided(cli: Any, branches: Branches) -> None:
    scripts = [f"sed -i '1s/.*/{name}/; 9s/.*/{name}/; {line}s/.*/own/' text" for name, line in (("A", 3), ("B", 5))]
    a, b = branches(*scripts)
    merge_id, _ = conflicted(cli("branch", "merge", a, b, "--name", "hunks"))
    _, explained = conflicted(cli("branch", "resolve", merge_id, "--hunk", f"text:9={b}"))
    assert ("line 1\n" in explained, "line 9\n" in explained) == (True, False)
    refused(cli("branch", "resolve", merge_id, "--hunk", f"text:9={a}"), "invalid")
    refused(cli("branch", "resolve", merge_id, "--hunk", "text:1=nobody"), "invalid")
    said(cli("branch", "resolve", merge_id, "--hunk", "text:1=base"))
    assert resolved_text(cli, "hunks") == ["line 0", "own", "own", "B"]


def test_paths_that_are_given_to_a_branch_list_what_they_drop(cli: Any, branches: Branches) -> None:
    a, b = branches("echo A >both; echo same >run.sh", "echo B >both; echo same >run.sh; rm -r dir")
    done = cli("branch", "merge", a, b, "--take", f"both={a}", "--take", f"run.sh={a}", "--take", f"dir={a}")
    assert said(done).startswith("sbx_")
    dropped = [line for line in done.stderr.decode().splitlines() if line.startswith("dropped")]
    assert dropped == [f"dropped  both: {b}", f"dropped  dir: {b}", f"dropped  dir/old: {b}"]


def test_one_version_is_written_byte_for_byte(cli: Any, branches: Branches) -> None:
    a, b = branches("printf 'A\\000\\033\\377' >both; rm run.sh", "printf B >both; ln -sf /nowhere run.sh")
    merge_id, _ = conflicted(cli("branch", "merge", a, b))
    shown = {side: cli("branch", "show", merge_id, "both", side).stdout for side in ("base", a, b)}
    assert shown == {"base": b"base\n", a: b"A\0\x1b\xff", b: b"B"}
    assert cli("branch", "show", merge_id, "run.sh", b).stdout == b"/nowhere"
    assert "has nothing there" in refused(cli("branch", "show", merge_id, "run.sh", a), "not_found")
    assert f"give one of base, {a}, {b}" in refused(cli("branch", "show", merge_id, "both", "c"), "not_found")
    larger, other = branches(*(f"tr '\\000' {letter} </dev/zero | head -c 5000000 >both" for letter in "AB"))
    merge_id, _ = conflicted(cli("branch", "merge", larger, other))
    assert cli("branch", "show", merge_id, "both", other).stdout == b"B" * 5_000_000
    assert '"\\n" has no conflict' in refused(cli("branch", "show", merge_id, "\n", a), "not_found")


def test_a_merge_is_given_up(cli: Any, branches: Branches) -> None:
    a, b = branches("echo A >both", "echo B >both")
    merge_id, _ = conflicted(cli("branch", "merge", a, b))
    assert said(cli("branch", "abandon", merge_id)) == merge_id
    assert merge_id not in said(cli("branch", "merges"))
    assert re.search(f"{merge_id} +removed", said(cli("branch", "merges", "--all")))
    refused(cli("branch", "resolve", merge_id, "both=base"), "conflict")


@pytest.mark.parametrize(("typed", "parts"), [("a=b=c", ("a=b", "c")), ("a\nb=c", ("a\nb", "c"))])
def test_a_path_may_have_equals_signs(typed: str, parts: tuple[str, str]) -> None:
    assert PathAndWord("BRANCH").convert(typed, None, None) == parts


def test_merges_paths_and_branches_are_completed(cli: Any, branches: Branches) -> None:
    a, b = branches(
        "echo A >both; echo A >run.sh; echo A >\"$(printf 'x\\ny')\"",
        "echo B >both; echo B >run.sh; echo B >\"$(printf 'x\\ny')\"",
    )
    merge_id, _ = conflicted(cli("branch", "merge", a, b))

    def completed(line: str) -> list[str]:
        told = until(lambda: cli(f"sandkeep branch {line}", "", env={"_SANDKEEP_COMPLETE": "bash"}).stdout)
        return [word.partition("\t")[2] for word in told.decode().splitlines()]

    assert completed(f"conflicts {merge_id[:-1]}") == [merge_id]
    assert completed(f"blame {merge_id[:-1]}") == [merge_id]
    assert completed(f"resolve {merge_id} ") == ["both=", "run.sh="]  # none with a newline
    assert completed(f"resolve {merge_id} both={a[:2]}") == [f"both={a}", f"both={b}"]
    assert completed(f"show {merge_id} r") == ["run.sh"]
    assert completed(f"resolve {merge_id} --delete r") == ["run.sh"]
    assert completed(f"resolve {merge_id} --rest {a}") == [a]
    assert completed(f"resolve {merge_id} --file b") == ["both="]
    assert "both=tests/" in completed(f"resolve {merge_id} --file both=te")  # of the present directory
    assert completed(f"show {merge_id} both ba") == ["base"]
    assert completed(f"merge {a} --policy ours:") == [f"ours:{a}"]
    assert completed("create ./s") == ["./s"]
    assert a in completed("create b")


# -- commit -----------------------------------------------------------------------------------------------------------

CHANGE = "sed -i 's/line 3$/LINE 3/' text; rm dir/old; echo new >new; echo x >\"$(printf 'evil\\n\\033]0;owned\\007')\""
CHANGED = ["D  dir/old", f"A  {QUOTED}", "A  new", "M  text"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return fill(tmp_path / "project")


def test_a_branch_is_committed_to_a_directory(cli: Any, branches: Branches, project: Path) -> None:
    [a] = branches(CHANGE, source=str(project))
    planned = said(cli("branch", "commit", a, "project", "--dry-run", cwd=project.parent)).splitlines()
    assert planned == [f"apply  {line}" for line in CHANGED]
    assert (project / "text").read_text() == LINES
    *lines, commit_id = said(cli("branch", "commit", a, ".", cwd=project)).splitlines()
    assert lines == CHANGED
    assert "LINE 3\n" in (project / "text").read_text()
    assert (project / HOSTILE).read_text() == "x\n"
    assert not (project / "dir/old").exists()
    rows = [line.split() for line in said(cli("branch", "blame", commit_id)).splitlines()]
    assert ["M", "text", "branch", a] in rows
    assert json.loads(said(cli("branch", "blame", commit_id, "new", "--json")))[0]["branches"] == [a]
    again = cli("branch", "commit", a, str(project))
    assert said(again).startswith("cmt_")
    assert b"nothing to commit" in again.stderr
    assert b"nothing to commit" in cli("branch", "commit", a, str(project), "--dry-run").stderr
    assert json.loads(said(cli("branch", "commit", a, str(project), "--json")))["status"] == "ready"


def test_what_the_host_changed_is_refused_and_then_forced(cli: Any, branches: Branches, project: Path) -> None:
    [a] = branches(CHANGE, source=str(project))
    (project / "text").write_text("mine\n")
    (project / "new").write_text("new\n")
    planned = said(cli("branch", "commit", a, str(project), "--dry-run"), 1).splitlines()
    assert sorted(planned) == [
        f"apply         A  {QUOTED}", "apply         D  dir/old", "host_changed  M  text  (content)",
        "same          A  new",
    ]  # fmt: skip
    assert json.loads(said(cli("branch", "commit", a, str(project), "--dry-run", "--json"), 1))["counts"]["same"] == 1
    assert "--force replaces" in refused(cli("branch", "commit", a, str(project)), "host_changed")
    assert (project / "dir/old").exists()
    said(cli("branch", "commit", a, str(project), "--dry-run", "--force"))
    assert said(cli("branch", "commit", a, str(project), "--force")).splitlines()[:-1] == [
        "D  dir/old", f"A  {QUOTED}", "M  text",
    ]  # fmt: skip
    assert "LINE 3\n" in (project / "text").read_text()


def test_the_origin_of_merged_paths(cli: Any, branches: Branches) -> None:
    a, b = branches("echo A >new; sed -i 's/line 3$/A/' text", "sed -i 's/line 15$/B/' text; rm run.sh")
    said(cli("branch", "merge", a, b, "--name", "sum"))
    said(cli("exec", "sum", "--", "touch", "later"))
    rows = [re.split(r"\s{2,}", line.strip())[:4] for line in said(cli("branch", "blame", "sum")).splitlines()]
    assert [row[1:] for row in rows[1:]] == [
        ["later", "branch", "sum"], ["new", "taken", a], ["run.sh", "taken", b], ["text", "merged", f"{a}, {b}"],
    ]  # fmt: skip
    assert [row[0] for row in rows[1:]] == ["A", "A", "D", "M"]
    [merge] = [m for m in json.loads(said(cli("branch", "merges", "--json"))) if m["name"] == "sum"]
    for paths in (["run.sh"], ["./run.sh"]):
        [row] = said(cli("branch", "blame", merge["merge_id"], *paths)).splitlines()[1:]
        assert row.split() == ["D", "run.sh", "taken", b]
    for everything in (".", "/"):
        assert said(cli("branch", "blame", merge["merge_id"], everything)) == said(
            cli("branch", "blame", merge["merge_id"])
        )


# -- commit --git -----------------------------------------------------------------------------------------------------

GIT_ENV = {
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_AUTHOR_NAME": "me", "GIT_AUTHOR_EMAIL": "me@x", "GIT_COMMITTER_NAME": "me", "GIT_COMMITTER_EMAIL": "me@x",
}  # fmt: skip


HOOK = """#!/bin/sh
echo "not $(git rev-parse --abbrev-ref HEAD): $GIT_LITERAL_PATHSPECS" >&2
printf '\\033[31m' >&2
exit 1
"""


class Repository:
    """A git repository of the user's, with the files that branches begin with."""

    def __init__(self, cli: Any, place: Path) -> None:
        self.place = place
        self._cli = cli
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message=first")

    def git(self, *words: str) -> str:
        env = {**os.environ, **GIT_ENV}
        done = subprocess.run(["git", *words], cwd=self.place, env=env, capture_output=True, check=True)
        return os.fsdecode(done.stdout)

    def commit(self, branch: str, *words: str, into: str = ".", **env: str) -> "subprocess.CompletedProcess[bytes]":
        done = self._cli("branch", "commit", branch, into, "--git", *words, cwd=self.place, env={**GIT_ENV, **env})
        assert isinstance(done, subprocess.CompletedProcess)
        return done

    def status(self) -> list[str]:
        return sorted(filter(None, self.git("status", "--porcelain", "-z").split("\0")))

    def committed(self) -> list[str]:
        """The paths of the last commit."""
        shown = self.git("show", "--no-renames", "--name-status", "--format=", "-z", "HEAD").split("\0")
        return sorted(f"{kind} {path}" for kind, path in zip(shown[::2], shown[1::2], strict=False))


@pytest.fixture
def repository(cli: Any, project: Path) -> Repository:
    return Repository(cli, project)


def of_git(repository: Repository) -> dict[str, Any]:
    return {"source": str(repository.place), "ignore": [".git"]}


def test_exactly_the_paths_of_the_branch_are_committed(branches: Branches, repository: Repository) -> None:
    [a] = branches(
        f"{CHANGE}; echo '*' >'*'; echo m >':(glob)z'; rm both; mkdir both; echo i >both/in", **of_git(repository)
    )
    place = repository.place
    (place / "staged").write_text("staged\n")
    (place / "run.sh").write_text("staged, and\n")
    repository.git("add", "staged", "run.sh")
    (place / "run.sh").write_text("changed again\n")
    (place / "untracked").write_text("untracked\n")
    before = repository.status()
    assert before == ["?? untracked", "A  staged", "MM run.sh"]
    *_, line = said(repository.commit(a, "-m", "From a branch\n\nwith a body", "--author", "Agent <a@b>")).splitlines()
    assert line == f"git {repository.git('rev-parse', 'HEAD')[:12]} on main"
    assert repository.committed() == [
        "A *", "A :(glob)z", "A both/in", f"A {HOSTILE}", "A new", "D both", "D dir/old", "M text",
    ]  # fmt: skip
    assert repository.git("show", "--no-patch", "--format=%an <%ae>|%cn|%B").strip() == (
        "Agent <a@b>|me|From a branch\n\nwith a body"
    )
    assert repository.status() == before
    assert repository.git("show", ":run.sh") == "staged, and\n"
    again = repository.commit(a, "-m", "again")
    assert said(again).startswith("cmt_")
    assert b"nothing to commit for git" in again.stderr
    assert repository.git("rev-list", "--count", "HEAD").strip() == "2"


def test_a_commit_on_a_new_branch(branches: Branches, repository: Repository) -> None:
    [a] = branches(CHANGE, **of_git(repository))
    (repository.place / "run.sh").write_text("mine\n")
    done = json.loads(said(repository.commit(a, "-m", "m", "--git-branch", "fix", "--json")))
    assert done["git"] == {"commit": repository.git("rev-parse", "fix").strip(), "branch": "fix"}
    assert repository.git("branch", "--show-current").strip() == "fix"
    assert repository.git("rev-list", "--count", "main").strip() == "1"
    assert repository.status() == [" M run.sh"]


@pytest.mark.parametrize("begin", ["main", "detached", "unborn"])
def test_a_branch_is_taken_back_when_anything_fails(branches: Branches, repository: Repository, begin: str) -> None:
    [a] = branches(CHANGE, **of_git(repository))
    if begin == "detached":
        repository.git("switch", "--quiet", "--detach")
    if begin == "unborn":
        repository.git("switch", "--quiet", "--orphan", "empty")
        fill_again(repository.place)
    head = (repository.place / ".git/HEAD").read_text()
    branches_before = repository.git("branch", "--list", "--format=%(refname)")
    (repository.place / "text").write_text("mine\n")
    before = repository.status()
    refused(repository.commit(a, "-m", "m", "--git-branch", "fix"), "host_changed")
    assert (repository.place / ".git/HEAD").read_text() == head
    assert repository.git("branch", "--list", "--format=%(refname)") == branches_before
    assert repository.status() == before


def fill_again(place: Path) -> None:
    for name in ("dir/old", "both", "run.sh"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text("again\n")


def test_a_hook_that_fails_is_told_and_nothing_is_lost(branches: Branches, repository: Repository) -> None:
    [a] = branches(CHANGE, **of_git(repository))
    hook = repository.place / ".git/hooks/pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(HOOK)
    hook.chmod(0o755)
    (repository.place / "staged").write_text("staged\n")
    repository.git("add", "staged")
    message = refused(repository.commit(a, "-m", "m", "--git-branch", "fix"), "not_ready")
    assert "git commit failed; the files are in" in message
    assert "  not fix: \n" in message
    assert "\x1b" not in message
    assert repository.git("branch", "--format=%(refname:short)").split() == ["main"]
    assert (repository.place / "new").exists()
    assert "A  staged" in repository.status()
    hook.unlink()
    repository.git("commit", "--quiet", "--message=by hand")
    assert "A new" in repository.committed()


@pytest.mark.parametrize("configured", ["hooks", "hooks/_"])
def test_hooks_that_come_from_the_branch_do_not_run(
    branches: Branches, repository: Repository, configured: str
) -> None:
    [a] = branches(
        "mkdir hooks; echo 'touch pwned' >hooks/pre-commit; chmod 755 hooks/pre-commit", **of_git(repository)
    )
    repository.git("config", "core.hooksPath", configured)
    assert "a hook that git would run" in refused(repository.commit(a, "-m", "m", "--git-branch", "x"), "invalid")
    assert repository.git("branch", "--format=%(refname:short)").split() == ["main"]
    assert repository.status() == []
    repository.git("config", "core.hooksPath", "other")
    said(repository.commit(a, "-m", "m"))
    assert repository.committed() == ["A hooks/pre-commit"]
    assert not (repository.place / "pwned").exists()


def test_without_a_work_tree_nothing_happens(
    cli: Any, branches: Branches, project: Path, repository: Repository, tmp_path: Path
) -> None:
    [a] = branches(CHANGE, **of_git(repository))
    bare = fill(tmp_path / "bare")
    for into in (str(bare), str(project / ".git"), str(project / "nowhere")):
        refused(repository.commit(a, "-m", "m", into=into), "invalid")
    refused(repository.commit(a, "-m", "m", "--git-branch", "main"), "not_ready")
    refused(repository.commit(a, "-m", "m", GIT_COMMITTER_NAME="", GIT_COMMITTER_EMAIL=""), "invalid")
    repository.git("update-ref", "MERGE_HEAD", "HEAD")
    assert "a merge is in progress" in refused(repository.commit(a, "-m", "m"), "not_ready")
    refused(repository.commit(a, "--dry-run"), "not_ready")
    refused(repository.commit(a, "-m", "m", PATH="/nonexistent"), "not_supported")
    assert not (bare / "new").exists()
    assert repository.status() == []


def test_a_directory_below_the_top(branches: Branches, repository: Repository) -> None:
    """Its own files are committed, none that git ignores."""
    [a] = branches("rm -r *; echo n >new; echo i >made.o")
    place = repository.place
    fill(place / "below")
    (place / ".gitignore").write_text("*.o\n")
    repository.git("add", "below", ".gitignore")
    repository.git("commit", "--quiet", "--message=below")
    done = repository.commit(a, "-m", "m", into="below", GIT_DIR="/nonexistent", GIT_INDEX_FILE="/nonexistent")
    assert "git " in said(done)
    assert b"git ignores made.o" in done.stderr
    assert repository.committed() == [
        "A below/new", "D below/both", "D below/dir/old", "D below/run.sh", "D below/text",
    ]  # fmt: skip


def test_a_bare_repository_is_left_out_and_that_is_said(branches: Branches, repository: Repository) -> None:
    [a] = branches(
        "rm -r *; mkdir -p objects refs; echo 'ref: refs/heads/x' >HEAD;"
        "printf '[core]\\nrepositoryformatversion = 0\\nbare = true\\nfsmonitor = touch pwned\\n' >config",
    )  # fmt: skip
    place = repository.place
    fill(place / "below")
    repository.git("add", "below")
    repository.git("commit", "--quiet", "--message=below")
    for _ in range(2):
        done = repository.commit(a, "-m", "m", into="below", GIT_DIR="/nonexistent", GIT_INDEX_FILE="/nonexistent")
        assert "git " not in said(done)
        assert b"that git would obey, in .git or a bare repository" in done.stderr
        assert b"all changes of the branch already" not in done.stderr
        assert not (place / "below" / "HEAD").exists()
        assert [*place.rglob("pwned")] == []


def test_a_deleted_file_that_git_does_not_know(branches: Branches, repository: Repository) -> None:
    repository.git("rm", "--quiet", "--cached", "run.sh")
    repository.git("commit", "--quiet", "--message=without it")
    [a] = branches("rm run.sh; echo m >both", **of_git(repository))
    said(repository.commit(a, "-m", "m"))
    assert repository.committed() == ["M both"]
    assert repository.status() == []


def test_a_directory_that_became_a_link(branches: Branches, repository: Repository) -> None:
    [a] = branches("rm -r dir; ln -s /etc dir", **of_git(repository))
    said(repository.commit(a, "-m", "m"))
    assert repository.committed() == ["A dir", "D dir/old"]
    assert repository.status() == []


# -- events -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "data", "shown"),
    [
        (
            "create_requested", {"source_id": "x", "sandbox_ids": ["a", "b"], "names": ["\x1b", "two"]},
            "2 branches of x: �, two",
        ),
        (
            "merge_requested", {"branches": {"one": "a", "two": "b"}, "base_id": "x", "name": "sum"},
            "one, two over x, as sum",
        ),
        ("conflicted", {"conflicts": 1, "changed": 4}, "1 conflict, 4 paths changed"),
        ("resolve_requested", {"decisions": 2}, "2 decisions"),
        (
            "resolve_requested", {"decisions": 3, "choices": {"base": 1, "one (whole)": 2}},
            "3 decisions  1 base, 2 one (whole)",
        ),
        ("resolved", {"conflicts": 3}, "3 conflicts left"),
        ("merged", {"changed": 4, "sandbox_id": "x"}, "4 paths changed, into x"),
        ("commit_requested", {"sandbox_id": "x", "target": "/a\nb", "force": True}, "x to /a⏎b, by force"),
        ("committed", {"added": 1, "changed": 2, "deleted": 3}, "1 added, 2 changed, 3 deleted"),
        ("merge_failed", {"message": "why", "code": "internal"}, "why [internal]"),
    ],
)  # fmt: skip
def test_events_are_summarized(kind: str, data: dict[str, Any], shown: str) -> None:
    event = Event(
        position=1, time="2026-11-21T12:03:04.123456Z", type=f"branch.{kind}", version=1, stream="mrg_x", revision=1,
        data=data, meta={},
    )  # fmt: skip
    assert timeline.detail(event) == shown
