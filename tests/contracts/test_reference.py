"""What is generated from the tables: complete, fresh, and found stale when it is not."""

import ast
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sandkeep.errors import CODES
from sandkeep.events import EVENTS
from sandkeep.lifecycle import LIFECYCLES
from sandkeep.protocol import methods, openrpc
from sandkeep.protocol.methods import METHODS
from sandkeep.settings.all import ALL_SETTINGS
from sandkeep_reference import pages as reference
from sandkeep_reference import stubs
from sandkeep_reference.__main__ import main

ROOT = Path(__file__).parents[2]


# -- the pages --------------------------------------------------------------------------------------------------------


def test_the_pages_in_the_tree_are_fresh() -> None:
    assert reference.stale(str(ROOT / "docs" / "reference")) == []


def test_a_stale_or_missing_page_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference.write(str(tmp_path))
    assert main(["--check", str(tmp_path)]) == 0
    with open(tmp_path / "errors.md", "a") as page:
        page.write("by hand\n")
    os.unlink(tmp_path / "events.md")
    assert main(["--check", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "errors.md is stale" in said
    assert "events.md is stale" in said
    assert "methods.md" not in said


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("methods.md", METHODS),
        ("events.md", EVENTS),
        ("lifecycles.md", {event for kind in LIFECYCLES for event in kind.sources}),
        ("errors.md", CODES),
        ("settings.md", ALL_SETTINGS),
    ],
)
def test_a_page_has_every_row_of_its_table(page: str, names: Iterable[str]) -> None:
    text = (ROOT / "docs" / "reference" / page).read_text()
    for name in names:
        assert any(row in text for row in (f"## {name}\n", f"| `{name}` |", f"- [`{name}`](events.md#"))


def test_a_diagram_has_every_state_of_its_kind() -> None:
    parts = (ROOT / "docs" / "reference" / "lifecycles.md").read_text().split("\n## ")[1:]
    for kind, part in zip(LIFECYCLES, parts, strict=True):
        noun, _, rest = part.partition("\n")
        drawn = rest.partition("```mermaid")[2].partition("```")[0]
        assert noun == kind.noun
        assert all(f"{state} -->" in drawn or f"--> {state}" in drawn for state in kind.states)


# -- the signatures ---------------------------------------------------------------------------------------------------


def test_the_signatures_are_python_and_hold_every_method_for_both_clients() -> None:
    tree = ast.parse(stubs.stub())
    kinds = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for name, row in METHODS.items():
        noun, _, verb = name.partition(".")
        for prefix in ("Trio", "Blocking"):
            found = {
                part.name: part
                for part in kinds[prefix + noun.title()].body
                if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            assert (verb in found) == (row.descriptors == 0)  # the others are for `with_descriptors`
            if row.descriptors:
                continue
            assert isinstance(found[verb], ast.AsyncFunctionDef) == (prefix == "Trio")
            arguments = found[verb].args
            assert arguments.kwarg is not None
            options = re.findall(r"\w+", ast.unparse(arguments.kwarg))[-1]
            given = {*(argument.arg for argument in arguments.args), *_keys(kinds, options)}
            assert given == {"self", "progress", *row.params.__struct_fields__}


def _keys(kinds: dict[str, ast.ClassDef], name: str) -> Iterator[str]:
    """Yield the keys of a TypedDict and of those that it inherits from."""
    for part in kinds[name].body:
        assert isinstance(part, ast.AnnAssign)
        yield ast.unparse(part.target)
    for base in map(ast.unparse, kinds[name].bases):
        yield from _keys(kinds, base) if base in kinds else ()


# -- OpenRPC ----------------------------------------------------------------------------------------------------------


def test_the_document_describes_every_method_by_name() -> None:
    document = json.loads(msgspec.json.encode(openrpc.document()))
    described = {method["name"]: method for method in document["methods"]}
    assert list(described) == list(METHODS)
    for name, row in METHODS.items():
        method = described[name]
        assert method["paramStructure"] == "by-name"
        assert [param["name"] for param in method["params"]] == list(row.params.__struct_fields__)
        required = {field.name for field in msgspec.structs.fields(row.params) if field.required}
        assert {param["name"] for param in method["params"] if param["required"]} == required
        assert method["x-access"] == row.access.name.lower()
        assert method["x-deadline"] == row.deadline_s
        assert method["x-descriptors"] == row.descriptors


def test_every_reference_in_the_document_leads_somewhere() -> None:
    document = openrpc.document()
    for target in references(document):
        here: Any = document
        for step in target.removeprefix("#/").split("/"):
            here = here[step]


def references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [target for value in node.values() for target in references(value)]
    return [target for value in node for target in references(value)] if isinstance(node, list) else []


def test_types_are_written_as_one_writes_them() -> None:
    hints = {"Offset": "int", "Wait": "float", "Signal": "str"}
    for name, text in hints.items():
        assert stubs.type_text(getattr(methods, name)) == text
    assert stubs.type_text(methods.Command) == "list[str] | str"
