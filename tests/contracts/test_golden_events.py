"""Every shape that was ever written can be read for ever: `golden/` keeps one example of each, and none is changed.

A new event needs a new file there, `TYPE.v1.json`, with every field of the shape in it. One that gets a field needs
another, `TYPE.v1.2.json` and so on, and one that is changed in any other way a higher `version`, an upcast, and
`TYPE.v2.json`. `SHA256SUMS` has a line for each file; it gets lines, and none of it is changed.
"""

import functools
import hashlib
from typing import Any

import msgspec
import pytest
from tests.support.golden import CONTRACTS, EXAMPLES, Example

from sandkeep.events import EVENTS, Event
from sandkeep_store.eventlog.codec import CODEC, UPCASTS

LISTED = dict(reversed(line.split("  ", 1)) for line in (CONTRACTS / "SHA256SUMS").read_text().splitlines())
KEPT = sorted(
    str(path.relative_to(CONTRACTS))
    for folder in ("golden", "logs")
    for path in (CONTRACTS / folder).rglob("*")
    if path.is_file()
)
IDS = [example.path.name for example in EXAMPLES]


@pytest.mark.parametrize("name", sorted({*LISTED, *KEPT}))
def test_what_was_once_written_is_never_edited(name: str) -> None:
    """It stands for what is in logs out there, which nobody edits either."""
    path = CONTRACTS / name
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "gone"
    assert name in LISTED, f"{name} is new: (cd tests/contracts && sha256sum {name} >>SHA256SUMS)"
    assert digest == LISTED[name], (
        f"{name} was changed or removed: have it back from git, and write a new file beside it, "
        "with a higher version and an upcast if more than a field with a default was added"
    )


@functools.cache
def newest(kind: type[Event]) -> Example:
    """The last example of the shape that is written today."""
    return max(example for example in EXAMPLES if (example.type, example.version) == (kind.type, kind.version))


def is_in(part: Any, whole: Any) -> bool:
    """Whether all that a document says is said by another, which may say more."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and is_in(value, whole[key]) for key, value in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) == len(whole) and all(map(is_in, part, whole))
    return bool(part == whole)


def written(example: Example) -> Any:
    """The document of an example as it is written when it was read."""
    event = CODEC.decode(1, example.type, example.version, example.data)
    assert isinstance(event, EVENTS[example.type])
    return msgspec.json.decode(CODEC.encode(event))


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_nothing_of_an_example_is_lost_on_the_way(example: Example) -> None:
    """It is an event of today, and written again it says the same: no field was renamed, dropped or given another
    type, but by an upcast.
    """
    document = msgspec.json.decode(example.data)
    for version in range(example.version, EVENTS[example.type].version):
        document = UPCASTS[example.type, version](document)
    assert is_in(document, written(example))


def test_a_snapshot_that_was_to_lie_at_one_place() -> None:
    """The upcast of the one field that was renamed; under its new name it was written with the same version."""
    first, second, today = [example for example in EXAMPLES if example.type == "snapshot.create_requested"]
    assert "place" in msgspec.json.decode(first.data)
    assert (first.version, second.version, today.version) == (1, 1, 2)
    assert written(first) == written(second) == written(today) == msgspec.json.decode(today.data)


@pytest.mark.parametrize("kind", EVENTS.values(), ids=lambda kind: kind.type)
def test_every_event_has_an_example_of_each_version(kind: type[Event]) -> None:
    versions = {example.version for example in EXAMPLES if example.type == kind.type}
    assert versions == set(range(1, kind.version + 1)), f"write the missing examples of {kind.type}"


@pytest.mark.parametrize("kind", EVENTS.values(), ids=lambda kind: kind.type)
def test_the_last_example_shows_every_field(kind: type[Event]) -> None:
    document: dict[str, Any] = msgspec.json.decode(newest(kind).data)
    assert list(document) == [field.encode_name for field in msgspec.structs.fields(kind)]
