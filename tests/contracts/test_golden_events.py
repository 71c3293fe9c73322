"""Every shape that was ever written can be read for ever: `golden/` keeps one example of each, and none is changed.

A new event needs a new file there, named `TYPE.vVERSION.json`, with every field of the shape in it; a new version of an
event needs a file besides the older ones.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from sandkeep.events import EVENTS, Event
from sandkeep_store.codec import CODEC

GOLDEN = Path(__file__).parent / "golden"
FILES = sorted(GOLDEN.glob("*.json"))


def _named(path: Path) -> tuple[str, int]:
    type, _, version = path.name.removesuffix(".json").rpartition(".v")
    return type, int(version)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_example_of_every_shape_is_read_as_an_event_of_today(path: Path) -> None:
    type, version = _named(path)
    event = CODEC.decode(1, type, version, path.read_bytes())
    assert isinstance(event, EVENTS[type])


@pytest.mark.parametrize(
    "path", [path for path in FILES if _named(path)[1] == EVENTS[_named(path)[0]].version], ids=lambda path: path.name
)
def test_nothing_of_an_example_is_lost_on_the_way(path: Path) -> None:
    """Writing what was read gives the document again: no field was renamed, dropped or given another type."""
    type, version = _named(path)
    document: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    written = msgspec.json.decode(CODEC.encode(CODEC.decode(1, type, version, path.read_bytes())))
    assert written == document


@pytest.mark.parametrize("kind", EVENTS.values(), ids=lambda kind: kind.type)
def test_every_event_has_an_example_of_each_version(kind: type[Event]) -> None:
    for version in range(1, kind.version + 1):
        path = GOLDEN / f"{kind.type}.v{version}.json"
        assert path in FILES, f"write an example of {kind.type} version {version} to {path}"


@pytest.mark.parametrize("kind", EVENTS.values(), ids=lambda kind: kind.type)
def test_an_example_shows_every_field(kind: type[Event]) -> None:
    document: dict[str, Any] = msgspec.json.decode((GOLDEN / f"{kind.type}.v{kind.version}.json").read_bytes())
    assert list(document) == [field.encode_name for field in msgspec.structs.fields(kind)]
