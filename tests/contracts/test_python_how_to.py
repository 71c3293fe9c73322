"""The how-to for Python: its blocks run as they stand, and by its rule with `await` on clients with an event loop; its
programs run as programs.
"""

import ast
import asyncio
import inspect
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from tests.support.documents import blocks
from tests.support.patience import patient

import sandkeep

pytestmark = pytest.mark.needs("bwrap")

DOCUMENT = "docs/how-to/python.md"
PROJECT = "/path/to/project"


def is_program(block: str) -> bool:
    return PROJECT in block and "with " in block


BLOCKS = [block for block in blocks(DOCUMENT, "python") if not is_program(block)]
PROGRAMS = [block for block in blocks(DOCUMENT, "python") if is_program(block)]


@pytest.fixture
def project(tmp_path: Path) -> str:
    (tmp_path / "main.txt").write_text("first\n")
    return str(tmp_path)


@pytest.fixture(autouse=True)
def at_the_daemon(shared_daemon: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As a reader has it: the environment says where the daemon is. Nothing stays running."""
    monkeypatch.setenv("SANDKEEP_SOCKET", shared_daemon.socket)
    yield
    with shared_daemon.connect() as client:
        assert client.sandboxes.list() == []


def test_there_are_ten_things_and_programs_for_all_clients() -> None:
    assert len(BLOCKS) >= 10
    for client in ("sandkeep.connect()", "sandkeep.aio.connect()", "sandkeep.blocking.connect()"):
        assert any(client in program for program in PROGRAMS)


def test_the_blocks(project: str) -> None:
    names: dict[str, Any] = {}
    for block in BLOCKS:
        with redirect_stdout(StringIO()) as printed:
            exec(compile(block.replace(PROJECT, project), DOCUMENT, "exec"), names)
        check(block, printed.getvalue())


async def test_the_blocks_on_trio(project: str) -> None:
    async with sandkeep.connect() as client:
        await run_awaited(client, project)


def test_the_blocks_on_asyncio(project: str) -> None:
    async def main() -> None:
        async with sandkeep.aio.connect() as client:
            await run_awaited(client, project)

    asyncio.run(main())


async def run_awaited(client: Any, project: str) -> None:
    """Run the blocks, but for the one that connects, with what a reader adds on a client with an event loop."""
    image = await client.images.create(project)
    names: dict[str, Any] = {"client": client, "image": image, "_settle": settle, "_each": each}
    for block in BLOCKS[1:]:
        tree = ast.fix_missing_locations(Awaited().visit(ast.parse(block)))
        code = compile(tree, DOCUMENT, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        with redirect_stdout(StringIO()) as printed:
            await settle(eval(code, names))
        check(block, printed.getvalue())


class Awaited(ast.NodeTransformer):
    """Put `await` before each call, and `async` before each `with` and `for`; `settle` and `each` wait where needed."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return ast.Await(ast.Call(ast.Name("_settle", ast.Load()), [node], []))

    def visit_With(self, node: ast.With) -> ast.AST:
        self.generic_visit(node)
        return ast.AsyncWith(node.items, node.body)

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        return ast.AsyncFor(node.target, self._each(node.iter), node.body, node.orelse)

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        return ast.comprehension(node.target, self._each(node.iter), node.ifs, is_async=1)

    def _each(self, iterable: ast.expr) -> ast.expr:
        return ast.Call(ast.Name("_each", ast.Load()), [iterable], [])


async def settle(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def each(iterable: Any) -> AsyncIterator[Any]:
    if hasattr(iterable, "__aiter__"):
        async for element in iterable:
            yield element
    else:
        for element in iterable:
            yield element


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: re.search(r"import ([\w.]+)", program)[1])  # type: ignore[index]
def test_a_program(program: str, project: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program.replace(PROJECT, project)], capture_output=True, text=True, timeout=patient(120)
    )
    assert done.returncode == 0, done.stderr
    check(program, done.stdout)
    if "echo one; echo two" in program:
        assert sorted(re.findall("[0-2]|one|two", done.stdout)) == ["0", "1", "2", "one", "two"]


def check(block: str, printed: str) -> None:
    """Compare what was printed with the comments behind `print`."""
    lines = printed.splitlines()
    for expected in re.findall(r"^ *print\(.*\)  # (.*)$", block, flags=re.MULTILINE):
        assert expected in lines, f"{expected!r} is not in {lines}"
        del lines[: lines.index(expected) + 1]
