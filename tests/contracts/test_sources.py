"""`docs/reference/sources.md`: each row of the sources' checklist once, in order, with tests that there are."""

import ast
import re
from functools import cache

import pytest
from tests.support.documents import ROOT

PAGE = ROOT / "docs/reference/sources.md"
ROWS_OF = {"000": 21, "001": 20, "002": 19, "003": 33, "004": 13}
"""Number of rows of the checklist, by source."""

_ROW = re.compile(r"^- \*\*(\d{3})\.(\d+)\*\* ", flags=re.MULTILINE)


def rows() -> dict[tuple[str, int], list[str]]:
    """Return the tests that are named for each row."""
    text = PAGE.read_text()
    begins = list(_ROW.finditer(text))
    ends = [*(row.start() for row in begins[1:]), len(text)]
    found: dict[tuple[str, int], list[str]] = {}
    for row, end in zip(begins, ends, strict=True):
        key = row[1], int(row[2])
        assert key not in found, f"{key} is there twice"
        found[key] = re.findall(r"`(tests/\S+\.py::\S+?)`", text[row.start() : end])
    return found


@cache
def functions(path: str) -> set[str]:
    """Return the names of the tests of a file, classes of tests, and tests in them as `Class::name`."""
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.ClassDef):
            found |= {node.name} | {f"{node.name}::{one.name}" for one in node.body if isinstance(one, _FUNCTIONS)}
        elif isinstance(node, _FUNCTIONS):
            found.add(node.name)
    return found


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def named() -> list[str]:
    return sorted({node_id for tests in rows().values() for node_id in tests})


@pytest.mark.parametrize("node_id", named())
def test_every_test_that_the_page_names_exists(node_id: str) -> None:
    path, _, name = node_id.partition("::")
    assert (ROOT / path).is_file()
    assert name.partition("[")[0] in functions(path)


def test_rows_are_in_order_and_each_has_a_test() -> None:
    found = rows()
    assert list(found) == sorted(found)
    assert [key for key, tests in found.items() if not tests] == []
    assert {key for key in found if not 1 <= key[1] <= ROWS_OF[key[0]]} == set()


def test_the_page_counts_its_rows() -> None:
    counted = re.search(r"^(\d+) of (\d+) rows", PAGE.read_text(), flags=re.MULTILINE)
    assert counted is not None
    assert (int(counted[1]), int(counted[2])) == (len(rows()), sum(ROWS_OF.values()))
