"""A daemon that lies: it answers every method with a value of the right type whose texts all drive terminals.

It is for programs that print answers. What no real daemon would say, a sandbox, a caller or an engine can, somewhere:
so no field is trusted, and none is forgotten.
"""

import socket
import threading
import time
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import inspect

from sandkeep.protocol.methods import METHODS

HOSTILE: Final = (
    "evil\x1b]0;owned\x07\x1b[31m\x1bPtmux;\x1b\x1b]52;c;QQ==\x07\x1b\\\x1bk screen\x1b\\\x00\x7f\x9b31m\x9d0;x\x9c\r"
    "\xad\u061c\u200b\u200e\u202egnp.exe\u2028\u2029\u2066\u2069\ufeff\U000e0041"
)
TIME: Final = "2026-11-22T09:00:00.000000Z"
_PATH: Final = "/" + HOSTILE.replace("\0", "")
_PATTERNS: Final = {r"^/[^\x00:]": _PATH, r"^(/[^\x00:]*|": _PATH, "^[A-Za-z0-9]": "web1"}
"""Values for texts that must match a pattern, by its beginning."""

_PAGES: Final = ("next", "after")


def value_of(found: Any, field: str = "") -> Any:
    """Return a value of a type, as `msgspec.inspect` describes it, for the field of that name."""
    match found:
        case inspect.Metadata():
            is_time = "RFC 3339" in str((found.extra_json_schema or {}).get("description"))
            return TIME if is_time else value_of(found.type, field)
        case inspect.StrType():
            return (
                HOSTILE
                if found.pattern is None
                else next(v for p, v in _PATTERNS.items() if found.pattern.startswith(p))
            )
        case inspect.BoolType():
            return True
        case inspect.IntType() | inspect.FloatType():
            return 1
        case inspect.BytesType():
            return ""
        case inspect.LiteralType():
            return found.values[0]
        case inspect.UnionType():
            return None if field in _PAGES else value_of(_first(found.types), field)
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType():
            return [value_of(found.item_type)]
        case inspect.DictType():
            return {value_of(found.key_type): value_of(found.value_type)}
        case inspect.StructType():
            return {one.encode_name: value_of(one.type, one.name) for one in found.fields}
        case inspect.AnyType():
            return HOSTILE
        case inspect.RawType() | inspect.NoneType():
            return None
    raise NotImplementedError(found)


def _first(types: Any) -> Any:
    return next(one for one in types if not isinstance(one, inspect.NoneType))


def result_of(method: str) -> Any:
    """Return the result of a method, as a lying daemon gives it."""
    row = METHODS.get(method)
    return None if row is None or row.result is None else value_of(inspect.type_info(row.result))


class LyingDaemon:
    """Listens on a socket. With `fails` it answers every call but the greeting with an error."""

    def __init__(self, path: Path, *, fails: bool = False, code: str = "in_use") -> None:
        self.fails = fails
        self.code = code
        self.delay_s = 0.0
        """Seconds between the progress message, which comes first, and the answer."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as requests:
            for line in requests:
                request = msgspec.json.decode(line)
                try:
                    client.sendall(b"".join(map(_line, self._answers(request))))
                except OSError:
                    return

    def _answers(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        method = request["method"]
        if method == "rpc.hello":
            return [answer | {"result": {"log_id": "log_" + "0" * 26, "version": "1", "server": "sandkeepd"}}]
        time.sleep(self.delay_s)
        progress = {"jsonrpc": "2.0", "method": "progress", "params": {"request": request["id"], "message": HOSTILE}}
        if self.fails:
            data = {"code": self.code, "name": HOSTILE, HOSTILE: HOSTILE}
            return [progress, answer | {"error": {"code": -32000, "message": f"{HOSTILE}\n{HOSTILE}", "data": data}}]
        return [progress, answer | {"result": result_of(method)}]


def _line(message: dict[str, Any]) -> bytes:
    return msgspec.json.encode(message) + b"\n"
