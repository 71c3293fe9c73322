"""Totals of copies: counted beside the copy, here and in a sandbox."""

import ast
from pathlib import Path
from typing import Any

import pytest
from tests.support.expect import until
from tests.support.patience import patient

import sandkeep.cli
from sandkeep.cli.commands.cp import Total
from sandkeep.cli.options import Frontend

pytestmark = pytest.mark.needs("bwrap")

TREE = "mkdir -p tree/deep; head -c 1000 /dev/zero >tree/one; head -c 234 /dev/zero >tree/deep/two; ln -s one tree/link"


def counted(front: Frontend, local: str, inside: tuple[str, str] | None = None) -> int | None:
    total = Total(front, local, inside)
    assert total.known() in (None, 1000, 1234), "it does not keep the copy waiting"
    assert total._thread is not None
    total._thread.join(patient(60))
    return total.known()


@pytest.mark.parametrize(
    ("path", "size"),
    [
        ("tree", 1234),
        ("tree/.", 1234),
        ("/workspace/tree", 1234),
        ("tree/one", 1000),
        ("nothing", 0),
        ("no/thing", None),
    ],
)
def test_a_copy_from_a_sandbox_knows_its_total(shared_daemon: Any, box: str, path: str, size: int | None) -> None:
    assert shared_daemon.cli("exec", box, "--", "sh", "-c", TREE).returncode == 0
    front = Frontend(shared_daemon.socket, as_json=False)
    with front.client():
        assert counted(front, "", (box, path)) == size


def test_a_copy_from_here_knows_its_total(shared_daemon: Any, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "one").write_bytes(b"x" * 1000)
    (tmp_path / "deep" / "two").write_bytes(b"x" * 234)
    front = Frontend(shared_daemon.socket, as_json=False)
    assert counted(front, str(tmp_path)) == 1234
    assert counted(front, str(tmp_path / "one")) == 1000
    assert counted(front, str(tmp_path / "nothing")) is None


def test_a_copy_shows_its_total(shared_daemon: Any, box: str, tmp_path: Path) -> None:
    """Through a pipe that the test holds open, until the line has been seen."""
    from sandkeep import transfer

    (tmp_path / "file").write_bytes(b"x" * 100_000)
    front, seen = Frontend(shared_daemon.socket, as_json=False), []
    with front.client() as client:
        total = Total(front, str(tmp_path / "file"), None)
        transfer.copy_in(client, tmp_path / "file", box, "file", progress=lambda count: seen.append(total.known()))
        assert seen, "it was asked at the end at the latest"
        assert until(total.known) == 100_000


COMMANDS = Path(sandkeep.cli.__file__).parent / "commands"
PRINTS = {"print", "json_line", "facts", "table", "note", "_answer"}


def _called(node: ast.AST) -> str:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


@pytest.mark.parametrize("path", sorted(COMMANDS.glob("*.py")), ids=lambda path: path.stem)
def test_nothing_is_printed_beside_the_line_of_progress(path: Path) -> None:
    """On a slow machine the line is there, and a result would come behind it."""
    blocks = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.With) and any(_called(item.context_expr) == "progress" for item in node.items)
    ]
    printed = [inner.lineno for block in blocks for inner in ast.walk(block) if _called(inner) in PRINTS]
    assert printed == []
