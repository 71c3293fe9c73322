"""Encoding of events: JSON, one decoder per type, and upcasts for old versions.

Pure: no files, no clock. The name of an event and its version are columns of the log, not part of the bytes. A breaking
change raises `version` in `sandkeep.events` and adds an entry to `UPCASTS`, which converts the older document to the
next version on each read; stored events are never rewritten.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from sandkeep.errors import CallerError
from sandkeep.events import EVENTS, MAX_EVENT_BYTES, Event, Meta

Document: TypeAlias = dict[str, Any]
Upcast: TypeAlias = Callable[[Document], Document]


def _several_places(document: Document) -> Document:
    """A snapshot was to lie at one `place`; of the same version are documents that name `places` already."""
    place = document.pop("place", None)
    return document if place is None else {**document, "places": [place]}


UPCASTS: Final[dict[tuple[str, int], Upcast]] = {("snapshot.create_requested", 1): _several_places}
"""(type, version) -> function that converts a document of that version to the next."""


class UnknownEvent(Exception):  # noqa: N818  # it names the unknown type, as KeyError does the key
    """The log holds an event that this version of Sandkeep cannot read. Its bytes can still be passed on."""

    def __init__(self, position: int, type: str, version: int, reason: str) -> None:
        super().__init__(
            f"the event at position {position}, {type!r} version {version}, cannot be understood ({reason}): "
            "run the version of Sandkeep that wrote it, or a newer one"
        )
        self.position = position
        self.type = type
        self.version = version


class Shape:
    """The decoder of one event type, with its current version."""

    __slots__ = ("decode", "name", "version")

    def __init__(self, kind: type[Event]) -> None:
        self.name = kind.type.encode()
        self.version = kind.version
        self.decode: Callable[[bytes], Event] = msgspec.json.Decoder(kind).decode


class Codec:
    """Reads and writes the events of one vocabulary. There is one, `CODEC`, unless a test brings shapes of its own."""

    def __init__(
        self,
        kinds: Mapping[str, type[Event]] = EVENTS,
        upcasts: Mapping[tuple[str, int], Upcast] = UPCASTS,
        max_event_bytes: int = MAX_EVENT_BYTES,
    ) -> None:
        for kind in kinds.values():
            for version in range(1, kind.version):
                if (kind.type, version) not in upcasts:
                    raise TypeError(f"{kind.type} has version {kind.version} but no upcast from {version}")
        self.shapes: dict[str, Shape] = {}
        self._kinds = kinds
        self._upcasts = upcasts
        self._max_event_bytes = max_event_bytes
        self._encode = msgspec.json.Encoder().encode

    def encode(self, event: Event) -> bytes:
        """The bytes of an event. Raises `invalid` for one that is larger than an event may be."""
        data = self._encode(event)
        if len(data) > self._max_event_bytes:
            raise CallerError(
                "invalid",
                f"{event.type} would be {len(data)} bytes in the event log, where {self._max_event_bytes} is the most: "
                "give shorter values",
                size_bytes=len(data),
                max_bytes=self._max_event_bytes,
            )
        return data

    def encode_meta(self, meta: Meta) -> bytes:
        """Encode the metadata of an event's cause."""
        return self._encode(meta)

    def shape(self, type: str) -> Shape | None:
        """Return the decoder of `type`, or None for an unknown type. Decoders are made on first use."""
        shape = self.shapes.get(type)
        if shape is None and type in self._kinds:
            shape = self.shapes[type] = Shape(self._kinds[type])
        return shape

    def decode(self, position: int, type: str, version: int, data: bytes) -> Event:
        """The event of a row. Raises `UnknownEvent` for a type, version or document that is not known here."""
        shape = self.shapes.get(type) or self.shape(type)
        if shape is None:
            raise UnknownEvent(position, type, version, "no such type is known")
        if not 1 <= version <= shape.version:
            raise UnknownEvent(position, type, version, f"the newest version known is {shape.version}")
        try:
            return shape.decode(data if version == shape.version else self._upcast(type, version, shape.version, data))
        except ValueError as error:
            raise UnknownEvent(position, type, version, str(error)) from None

    def _upcast(self, type: str, version: int, target: int, data: bytes) -> bytes:
        document = msgspec.json.decode(data, type=Document)
        for step in range(version, target):
            document = self._upcasts[type, step](document)
        return self._encode(document)


CODEC: Final = Codec()
