"""What is generated from the tables: complete, fresh, and found stale when it is not."""

import ast
import inspect
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sandkeep.clients import handles
from sandkeep.clients.binding import COLLECTIONS, Nouns
from sandkeep.clients.kinds import KINDS, PLURALS
from sandkeep.clients.signatures import type_text
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


@pytest.mark.parametrize(("prefix", "asynchronous"), stubs.PREFIXES.items())
def test_type_checkers_read_what_inspect_finds(prefix: str, asynchronous: bool) -> None:
    classes = {node.name: node for node in ast.parse(stubs.stub()).body if isinstance(node, ast.ClassDef)}
    client = FakeClient(asynchronous)
    for name, row in METHODS.items():
        noun, _, verb = name.partition(".")
        found = _functions(classes[f"{prefix}{noun.title()}Methods"])
        assert (verb in found) == (row.descriptors == 0)  # the others are for `with_descriptors`
        if verb in found:
            _agrees(found[verb], getattr(getattr(client, noun), verb), asynchronous)
    for made in handles.family(asynchronous=asynchronous).values():
        declared = classes[made.__name__]
        views = [classes[ast.unparse(base)] for base in declared.bases]
        assert len(views) == issubclass(made, handles.Handle)
        for name, node in [pair for each in (declared, *views) for pair in _functions(each).items()]:
            known = inspect.getattr_static(made, name, None)
            if inspect.isfunction(known) and not name.startswith("_"):
                _agrees(node, known, inspect.iscoroutinefunction(known))
            elif not name.startswith("_"):
                assert isinstance(known, property) or name in made._kind.view.__struct_fields__  # type: ignore[attr-defined]
        assert {name for name in vars(made) if name[0] != "_"} <= set(_functions(declared))
        assert all(set(made._kind.view.__struct_fields__) < set(_functions(view)) for view in views)  # type: ignore[attr-defined]


def test_a_client_has_a_collection_of_each_kind() -> None:
    assert COLLECTIONS == PLURALS


def test_no_method_of_a_handle_hides_a_field_of_its_view() -> None:
    for kind in KINDS:
        made = handles.family(asynchronous=False)[kind.noun]
        assert not {name for name in vars(made) if name[0] != "_"} & set(kind.view.__struct_fields__)


class FakeClient(Nouns):
    """A client whose calls go nowhere."""

    def __init__(self, asynchronous: bool) -> None:
        self._call = self._call_async if asynchronous else self._call_blocking  # type: ignore[method-assign]

    async def _call_async(self, row: Any, *args: Any, **kwargs: Any) -> Any: ...

    def _call_blocking(self, row: Any, *args: Any, **kwargs: Any) -> Any: ...


def _functions(kind: ast.ClassDef) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    return {part.name: part for part in kind.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}


def _agrees(node: ast.FunctionDef | ast.AsyncFunctionDef, function: Any, asynchronous: bool) -> None:
    shown = inspect.signature(function)
    (told,) = ast.parse(f"def f{shown}: ...").body
    assert isinstance(told, ast.FunctionDef)
    if node.args.args[0].arg == "self" and "self" not in shown.parameters:
        node.args.args.pop(0)
    assert ast.unparse(node.args) == ast.unparse(told.args)
    assert node.returns is not None
    assert told.returns is not None
    assert ast.unparse(node.returns).replace("builtins.", "") == ast.unparse(told.returns)
    assert isinstance(node, ast.AsyncFunctionDef) == asynchronous == inspect.iscoroutinefunction(function)
    assert ast.get_docstring(node) == function.__doc__


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
        assert type_text(getattr(methods, name)) == text
    assert type_text(methods.Command) == "list[str] | str"
