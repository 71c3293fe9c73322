"""What fuzzing shares: messages that are right, nearly right and not right at all; and whether a daemon leaks."""

import contextlib
import ctypes
import gc
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any, Self

import msgspec
import trio
from tests.support.expect import until_async

from sandkeep.protocol import jsonrpc
from sandkeep.protocol.jsonrpc import Batch, Fault, Message, Request
from sandkeep.protocol.methods import METHODS, Method

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 80, 1000, 1001, 65536, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 0.0, 0.5,
    -0.5, 1e9, 1e308, 1e-320, "", "a", "box", "web", "img_1", "sbx_0123456789ABCDEFGHJKMNPQRS", "x" * 64, "x" * 65,
    "x" * 5000, "../x", "/nowhere", "nowhere", "a\0b", "a\n", "é", "\ud7ff", "\U0010ffff", "aGk=", "!!!!", "KILL",
    "SIGTERM", "9", "stdout", "all", "xterm", "none", "host", "docker", "process.exited", "process", "0" * 64, [], [1],
    ["true"], ["a", None], [[[[]]]], {}, {"a": "b"}, {"A": 1}, {"A\0": "x"}, {"": ""}, {"sandbox_id": "box"},
]  # fmt: skip
"""What parameters may be. No name of a directory is among them, and no wait that is long."""

_IDS: list[Any] = [None, 0, -1, 1.5, 1e300, "", "é", "x" * 200, "x" * 300, True, [], {}, 2**70]
_STRUCTURAL = [b"{", b"}", b"[", b"]", b'"', b":", b",", b"\\", b"\0", b"\xff", b"\xed\xa0\x80", b"\\ud800", b"NaN",
               b"1e999", b"-", b"\r", b"\t", b" " * 300, b"[" * 2000, b'{"a":' * 600, b"null"]  # fmt: skip
_LONG_WAIT_S = 0.05
MOST_GROWTH = 4 * 1024 * 1024
"""So much more memory is no leak, however much was sent."""


_KEPT: list[type[msgspec.Struct]] = []
"""Types that msgspec checked something by. 0.22 gives back too much when it lets go of one that has a pattern, and
crashes later; those of the table are never let go of."""


class Grammar:
    """Makes messages by the table of methods, and spoils them. The same `seed` makes the same."""

    def __init__(self, seed: int, methods: list[Method] | None = None, values: list[Any] = VALUES) -> None:
        self.chance = Random(seed)
        self._methods = methods or list(METHODS.values())
        self._values = values
        self._right = {row.name: self._fields(row) for row in self._methods}
        self._required = {
            row.name: [field.name for field in msgspec.structs.fields(row.params) if field.required]
            for row in self._methods
        }
        self._encode = msgspec.json.Encoder().encode
        self._serial = 0

    def _fields(self, row: Method) -> dict[str, list[Any]]:
        """Values that each parameter may have."""
        found = {field.name: self._fitting(field) for field in msgspec.structs.fields(row.params)}
        return {name: values for name, values in found.items() if values}

    def _fitting(self, field: Any) -> list[Any]:
        alone = msgspec.defstruct("Alone", [("value", field.type)])
        _KEPT.append(alone)
        return [value for value in self._values if _fits(value, alone) and not _is_long(field.name, value)]

    def line(self) -> bytes:
        """One line, without its newline."""
        chance = self.chance.random()
        if chance < 0.03:
            return self._noise()
        if chance < 0.06:
            return self._batch()
        line = self._message()
        return self._spoiled(line) if chance < 0.25 else line

    def _message(self) -> bytes:
        chance = self.chance
        row = chance.choice(self._methods)
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": row.name, "params": self._params(row)}
        kind = chance.random()
        if kind < 0.92:
            self._serial += 1
            message["id"] = self._serial if kind < 0.8 else chance.choice(_IDS)
        if chance.random() < 0.06:
            message[chance.choice(["jsonrpc", "method", "params", "id", "more"])] = chance.choice(self._values)
        elif chance.random() < 0.03:
            del message[chance.choice(["jsonrpc", "method", "params"])]
        return self._encode(message)

    def _params(self, row: Method) -> dict[str, Any]:
        """Right ones; some of them with a mistake or two."""
        chance, right = self.chance, self._right[row.name]
        names = {name for name in right if chance.random() < 0.3}.union(self._required[row.name])
        params = {name: chance.choice(right[name]) for name in names if name in right}
        for _ in range(chance.choice((0, 0, 0, 1, 1, 2))):
            name = chance.choice([*right, "surplus"])
            value = chance.choice(self._values)
            if not _is_long(name, value):
                params[name] = value
        return params

    def _batch(self) -> bytes:
        some = [self._message() for _ in range(self.chance.choice((0, 1, 2, 5)))]
        if self.chance.random() < 0.3:
            some.append(self.chance.choice((b"5", b"{}", b"[]", b"null", b'"x"')))
        return b"[" + b",".join(some) + b"]"

    def _spoiled(self, line: bytes) -> bytes:
        """The same with some bytes changed, inserted, repeated or gone."""
        chance = self.chance
        for _ in range(chance.choice((1, 1, 2, 5))):
            at = chance.randrange(len(line) + 1)
            way = chance.random()
            if way < 0.4:
                line = line[:at] + chance.choice(_STRUCTURAL) + line[at:]
            elif way < 0.7:
                line = line[:at] + bytes([chance.randrange(256)]) + line[at + 1 :]
            elif way < 0.9:
                line = line[:at] + line[at + chance.randrange(20) :]
            else:
                line = line[:at] + line[at // 2 :]
        return b" " if _asks_to_wait(line) else line

    def _noise(self) -> bytes:
        return self.chance.randbytes(self.chance.choice((1, 3, 40, 300)))


def _fits(value: Any, alone: type[msgspec.Struct]) -> bool:
    try:
        msgspec.convert({"value": value}, alone)
    except (msgspec.ValidationError, OverflowError, ValueError):
        return False
    return True


def _is_long(name: str, value: Any) -> bool:
    """Whether it would make somebody wait."""
    return name in ("wait_s", "timeout_s") and isinstance(value, int | float) and value > _LONG_WAIT_S


def _asks_to_wait(line: bytes) -> bool:
    """A spoiled number may have become any."""
    return b"wait_s" in line or b"timeout_s" in line


def wanted(line: bytes) -> Counter[bytes]:
    """The ids of the answers that the lines of these bytes are to get, each with how often."""
    found: Counter[bytes] = Counter()
    for one in line.split(b"\n"):
        if one:
            found.update(_answers_to(jsonrpc.parse(one)))
    return found


def _answers_to(message: Message) -> Counter[bytes]:
    if isinstance(message, Batch):
        return sum(map(_answers_to, message.messages), Counter())
    if isinstance(message, Fault):
        return Counter([bytes(message.id)])
    assert isinstance(message, Request)
    return Counter([bytes(message.id)] if message.wants_answer else [])


class Reply(msgspec.Struct):
    """As much of an answer as is counted."""

    id: msgspec.Raw = jsonrpc.NO_ID
    method: str | None = None
    result: msgspec.Raw = jsonrpc.NO_ID
    error: msgspec.Raw = jsonrpc.NO_ID


_one, _many = msgspec.json.Decoder(Reply).decode, msgspec.json.Decoder(list[Reply]).decode


def replies(line: bytes) -> list[Reply]:
    """The answers in a line that came back; none in a notification."""
    found = _many(line) if line.startswith(b"[") else [_one(line)]
    for reply in found:
        assert reply.method is not None or bool(reply.result) != bool(reply.error), line
    return [reply for reply in found if reply.method is None]


async def settled(tasks: int) -> None:
    """Wait until no more tasks live than those: what was begun for a message has ended."""
    await until_async(lambda: tasks_living() <= tasks)


def tasks_living() -> int:
    return trio.lowlevel.current_statistics().tasks_living


def _open_files() -> Iterator[tuple[str, str]]:
    """Return each open descriptor with its file, but for the log's, which has some to spare."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            path = os.readlink(f"/proc/self/fd/{name}")
            if "events.db" not in path and not path.startswith("/proc/"):
                yield name, path


class Levels:
    """What must not grow, whatever is sent."""

    def __init__(self) -> None:
        gc.collect()
        # What threads have freed stays in their arenas: 12 MB after 500,000 messages that left nothing behind.
        ctypes.CDLL(None).malloc_trim(0)
        self.tasks = tasks_living()
        self.descriptors = set(_open_files())
        with open("/proc/self/statm") as file:
            self.resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def check(self, before: "Levels") -> None:
        """Raise AssertionError when there is more of something than before."""
        assert self.tasks == before.tasks
        assert not self.descriptors - before.descriptors  # other tests' in this process may go meanwhile
        assert self.resident - before.resident < MOST_GROWTH, f"grew by {self.resident - before.resident} bytes"


class Complaints(logging.Handler):
    """Collects what the daemon's parts report as errors: defects, above all."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(self.format(record))

    def __enter__(self) -> Self:
        logging.getLogger("sandkeepd").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("sandkeepd").removeHandler(self)


def shown(line: bytes) -> str:
    """A line for a person."""
    return json.dumps(line.decode("latin-1"))[:400]
