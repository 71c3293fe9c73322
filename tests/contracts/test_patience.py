"""No deadline of a test is a bare number: see `tests.support.patience`.

Of a number below `LEAST_S` it is the test itself that is done then, or it is a setting of what is tested.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parents[1]
LEAST_S: Final = 5

BY_PLACE: Final = {
    "fail_after": 0, "move_on_after": 0, "join": 0, "result": 0, "settimeout": 0, "wait": 0, "wait_for": 1,
    "until": 1,
}  # fmt: skip
"""Functions that take a deadline without its name, and its place among the arguments."""

BY_NAME: Final = {
    *BY_PLACE, "run", "check_call", "check_output", "communicate", "HTTPConnection", "create_connection",
    "attach", "attach_next", "attach_shared", "get", "urlopen", "submit", "call", "ask", "run_forever", "__init__",
}  # fmt: skip
"""Functions that take one as `timeout`, `timeout_s` or `seconds`."""

NAMES: Final = ("DEADLINE", "PATIENCE", "LATE", "START", "ANSWER")
"""The beginnings of the names of constants in seconds that are deadlines."""

PARAMETERS: Final = ("deadline_s", "patience_s", "seconds", "timeout", "timeout_s")
"""Parameters of which the default is one."""

SIMULATED: Final = {
    "daemon/api/test_limits.py:move_on_after",
    "daemon/api/test_server.py:move_on_after",
    "daemon/stream/test_slow_readers.py:move_on_after",
}
"""Waits on a clock that stands still while anything happens."""


def numbers(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the deadlines, with what takes them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in BY_PLACE and len(node.args) > BY_PLACE[name]:
                yield name, node.args[BY_PLACE[name]]
            if name in BY_NAME:
                named = [word for word in node.keywords if word.arg in ("timeout", "timeout_s", "seconds")]
                yield from ((name, word.value) for word in named)
        elif isinstance(node, ast.BinOp) and _is_call_of(node.left, "monotonic"):
            yield "monotonic", node.right
        elif isinstance(node, ast.arguments):
            defaults = list(zip([*node.posonlyargs, *node.args][::-1], node.defaults[::-1], strict=False))
            defaults += [(word, value) for word, value in zip(node.kwonlyargs, node.kw_defaults, strict=True) if value]
            yield from ((word.arg, value) for word, value in defaults if word.arg in PARAMETERS)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            name = getattr(target, "id", "")
            if name.lstrip("_").startswith(NAMES) and name.endswith(("_S", "LATE")):
                yield name, node.value


def _is_call_of(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name


def is_bare(deadline: ast.expr) -> bool:
    return isinstance(deadline, ast.Constant) and isinstance(deadline.value, int | float) and deadline.value >= LEAST_S


def bare(text: str, path: str) -> list[str]:
    """Return the deadlines in a file that are bare numbers."""
    deadlines = [(name, node) for name, node in numbers(ast.parse(text)) if is_bare(node)]
    return [f"{path}:{node.lineno}: {name}" for name, node in deadlines if f"{path}:{name}" not in SIMULATED]


def test_no_deadline_is_a_bare_number() -> None:
    files = sorted(path for path in TESTS.rglob("*.py") if path.parts[len(TESTS.parts)] != "vm")
    offenders = [line for path in files for line in bare(path.read_text(), str(path.relative_to(TESTS)))]
    assert offenders == [], "use tests.support.patience.patient"


@pytest.mark.parametrize(
    "line",
    [
        "with trio.fail_after(60): pass",
        "thread.join(timeout=60)",
        "subprocess.run(argv, timeout=60)",
        "until(lambda: True, 60)",
        "end = time.monotonic() + 60",
        "PATIENCE_S = 60.0",
        "def attach(*, patience_s=60): pass",
    ],
)
def test_a_bare_number_is_seen(line: str) -> None:
    assert bare(line, "f.py")
    assert not bare(line.replace("60.0", "60").replace("60", "patient(60)"), "f.py")
