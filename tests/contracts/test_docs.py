"""What the documents say is so: links lead somewhere, commands exist, promises name tests, methods are described."""

import os
import re
import shlex
from fnmatch import fnmatch
from functools import cache
from itertools import chain, count
from pathlib import Path

import click
import pytest
from tests.support.documents import blocks

from sandkeep.cli.root import sandkeep
from sandkeep.errors import CODES
from sandkeep.events import EVENTS
from sandkeep.protocol.methods import METHODS
from sandkeep.settings.all import ALL_SETTINGS

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benches/*.md")]
)

ALL_DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in ROOT.glob("**/*.md")
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
)
"""Those that tell developers about a directory, too."""

WIDTH = 100

FOLLOWED = {
    "README.md": "tests/contracts/test_tour.py",
    "docs/tutorial/tour.md": "tests/contracts/test_tour.py",
    "docs/tutorial/your-first-sandbox.md": "tests/contracts/test_tutorial.py",
    "docs/how-to/*.md": "tests/contracts/test_how_to.py",
    "docs/reference/cli.md": "tests/rpc/cli/test_usage.py",
}
"""Documents with commands, and the test that gives them."""

UNTOUCHED = {
    "docs/how-to/install-as-a-service.md": "it installs for the whole machine, as root, under systemd: make vm does; "
    "its units and what they start are tried in test_units.py and tests/daemon/app/test_systemd.py",
    "docs/how-to/kubernetes.md": "its commands are kubectl's: its manifests and its program are tried in "
    "test_kubernetes_examples.py and test_kubernetes_rbac.py",
    "docs/how-to/modal.md": "its commands need an account: the conformance suite does what they do",
    "CONTRIBUTING.md": "it names make's targets, which are looked up below; make test is what runs here",
    "systemd/README.md": "as install-as-a-service.md",
    "benches/README.md": "it names make's targets",
}
"""Documents whose commands no test gives, and why."""


@pytest.mark.parametrize("document", ALL_DOCUMENTS)
def test_no_line_is_longer_than_a_hundred_characters(document: str) -> None:
    """But for a path or URL that cannot be broken, alone on its line or as the meaning of a link."""
    unbreakable = re.compile(r"\s*(\[[^\]]+\]: )?\S+")
    lines = enumerate((ROOT / document).read_text().splitlines(), start=1)
    assert [number for number, line in lines if len(line) > WIDTH and not unbreakable.fullmatch(line)] == []


@pytest.mark.parametrize("document", ALL_DOCUMENTS)
def test_links_within_the_repository_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text()
    inline = re.findall(r"\]\(([^)#]+)[^)]*\)", text)
    for target in [*inline, *(target.partition("#")[0] for target in definitions(document).values())]:
        if "://" not in target:
            assert (ROOT / document).parent.joinpath(target).exists(), f"{document} links to {target}"


@pytest.mark.parametrize("document", ALL_DOCUMENTS)
def test_links_to_headings_lead_to_one(document: str) -> None:
    text = (ROOT / document).read_text()
    for target in [*re.findall(r"\]\(([^)]+)\)", text), *definitions(document).values()]:
        path, _, anchor = target.partition("#")
        if anchor and "://" not in target:
            other = os.path.normpath(Path(document).parent / path) if path else document
            assert anchor in anchors(other), f"{document} links to {target}"


@cache
def anchors(document: str) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them; the second of a name ends in -1."""
    prose = re.sub(r"^```.*?^```$", "", (ROOT / document).read_text(), flags=re.MULTILINE | re.DOTALL)
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", prose, flags=re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower().replace(" ", "-")
        anchor = re.sub(r"[^\w-]", "", text)
        names = chain([anchor], (f"{anchor}-{number}" for number in count(1)))
        found.add(next(name for name in names if name not in found))
    return found


def definitions(document: str) -> dict[str, str]:
    """Return the targets of a document's links by reference. A name that is defined twice fails."""
    found = re.findall(r"^\[([^\]]+)\]: (\S+)$", (ROOT / document).read_text(), flags=re.MULTILINE)
    assert len(dict(found)) == len(found), f"{document} defines a name twice"
    return dict(found)


@pytest.mark.parametrize("document", ALL_DOCUMENTS)
def test_links_by_reference_are_defined_and_used(document: str) -> None:
    prose = re.sub(r"^```.*?^```$", "", (ROOT / document).read_text(), flags=re.MULTILINE | re.DOTALL)
    used = {" ".join(name.split()) for name in re.findall(r"\]\[([^\]]+)\]", prose)}
    used |= set(re.findall(r"\[([^\]]+)\]\[\]", prose))
    assert used == set(definitions(document)), document


def commands() -> list[str]:
    """Every `sandkeep` command in the blocks of the README and the tour, as words after the first."""
    found = []
    for line in "".join(blocks("README.md", "sh") + blocks("docs/tutorial/tour.md", "sh")).splitlines():
        found += [words.strip() for words in re.findall(r"\bsandkeep ([^|)&#]*)", line)]
    return found


@pytest.mark.parametrize("words", commands())
def test_every_command_of_the_first_steps_is_one(words: str) -> None:
    names = [word for word in shlex.split(words.split(" -- ")[0]) if word]
    command: click.Command | None = sandkeep
    context = click.Context(sandkeep)
    while isinstance(command, click.Group):
        command = command.get_command(context, names.pop(0))
    assert command is not None, words
    options = {option for parameter in command.params for option in parameter.opts}
    assert {name for name in names if name.startswith("--")} <= options, words


def promises() -> list[tuple[str, str]]:
    """Return the tests that a document names as proofs: the path and the name of each."""
    found = set()
    for document in ["README.md", *(path for path in DOCUMENTS if path.startswith("docs/explanation/"))]:
        text, paths = (ROOT / document).read_text(), definitions(document)
        found |= set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text))
        named = re.findall(r"\[`(\w+)`\]\[([^\]]+)\]", text)
        linked = [(os.path.normpath(Path(document).parent / paths.get(label, "")), name) for name, label in named]
        found |= {(path, name) for path, name in linked if path.startswith("tests/")}
    return sorted(found)


def test_there_are_promises() -> None:
    assert len(promises()) >= 200


@pytest.mark.parametrize(("path", "name"), promises())
def test_every_promise_names_a_test_that_is_there(path: str, name: str) -> None:
    assert re.search(rf"^ *(async )?def {name}\(", (ROOT / path).read_text(), flags=re.MULTILINE), f"{path}::{name}"


@pytest.mark.parametrize(
    ("file", "names"),
    [("methods.md", METHODS), ("events.md", EVENTS), ("errors.md", CODES), ("settings.md", ALL_SETTINGS)],
)
def test_the_reference_has_all_of_it(file: str, names: dict[str, object]) -> None:
    text = (ROOT / "docs" / "reference" / file).read_text()
    assert [name for name in names if f"`{name}`" not in text and f"## {name}" not in text] == []


def test_the_provider_of_the_guide_is_the_one_that_is_tested() -> None:
    shown = "".join(blocks("docs/how-to/write-a-provider.md", "python"))
    written = (ROOT / "examples" / "plain_provider.py").read_text()
    assert [line for line in shown.splitlines() if line] == [line for line in written.splitlines() if line]


def test_the_make_targets_that_documents_name_are_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for document in DOCUMENTS:
        named = set(re.findall(r"(?:^\$ |`)make ([a-z-]+)", (ROOT / document).read_text(), flags=re.MULTILINE))
        assert named <= targets, document


def shell_blocks(document: str) -> list[str]:
    return re.findall(r"^```(?:sh|bash|shell|console)\b", (ROOT / document).read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("document", [document for document in DOCUMENTS if shell_blocks(document)])
def test_no_command_is_silently_unchecked(document: str) -> None:
    if document not in UNTOUCHED:
        (test,) = [test for pattern, test in FOLLOWED.items() if fnmatch(document, pattern)]
        assert (ROOT / test).exists()


def test_what_is_untouched_is_there() -> None:
    assert [document for document in UNTOUCHED if not (ROOT / document).exists()] == []
