"""A GCS service for tests: gcp-storage-emulator, made to keep what the real service promises.

As it comes it ignores every precondition, takes a request whose body broke off for a whole one and keeps nothing of a
part that broke off, lists everything on one page, cannot drop an upload that was begun, and serves one connection at a
time. Here each request's conditions are checked and carried out in one step, so that of sixteen writers who say "must
not exist" one wins. It reaches into the emulator's insides, whose version is therefore pinned.
"""

import contextlib
import json
import re
import threading
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from gcp_storage_emulator import server as emulator
from gcp_storage_emulator.exceptions import BadRequest, NotFound
from gcp_storage_emulator.handlers import objects
from gcp_storage_emulator.storage import Storage
from tests.support.threaded import InThread, QuietServer

Handler = Callable[..., Any]

_STEP = 256 * 1024
_IN_TURN = threading.RLock()


class _ClientClosed:
    """What the service answers when an upload that was begun is dropped."""

    value, phrase = 499, "Client Closed Request"


class Fault(NamedTuple):
    """What becomes of one write: the status it is answered with, or no answer at all; and whether it is carried out."""

    status: int | None
    applied: bool


class GcsEmulator(InThread):
    """The service on a port of its own, in this process; `url` is for STORAGE_EMULATOR_HOST."""

    def __init__(self) -> None:
        self.storage = _Storage(use_memory_fs=True)
        self.requests: list[str] = []
        self.heeds_ranges = True
        self._server: QuietServer = QuietServer(("127.0.0.1", 0), partial(_RequestHandler, self))
        self.port: int = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"

    def create_bucket(self, name: str) -> str:
        """A new bucket; answers its name."""
        from gcp_storage_emulator.handlers.buckets import create_bucket

        with _IN_TURN:
            create_bucket(name, self.storage)
        return name

    def unfinished(self, bucket: str) -> list[str]:
        """The names of objects whose upload was begun and neither finished nor dropped."""
        return [upload["name"] for upload in self.storage.resumable.values() if upload["bucket"] == bucket]

    def list_also(self, bucket: str, name: str) -> None:
        """Have a listing name an object, however odd its name is, which the emulator could not keep itself."""
        with _IN_TURN:
            resource = objects._make_object_resource(self.url, bucket, name, "text/plain", "1")
            self.storage.objects.setdefault(bucket, {})[name] = resource

    def overwrite(self, bucket: str, name: str, data: bytes) -> None:
        """Change an object's bytes behind everybody's back, and nothing else of it."""
        with _IN_TURN:
            self.storage._store.write_bytes(self.storage._object_path(bucket, name), data)


class _Storage(Storage):  # type: ignore[misc]  # it has no types
    """In memory, without copying all that an upload has so far for each of its parts, and without saving itself."""

    def __init__(self, **options: Any) -> None:
        self.parts: dict[str, bytearray] = {}
        self.faults: list[Fault] = []
        super().__init__(**options)

    def _write_config_to_file(self) -> None:
        pass

    def get_resumable_byte_count(self, upload: str) -> int:
        return len(self.parts.get(upload, b""))

    def add_to_resumable_upload(
        self, upload: str, content: bytes, total_size: int | None = None, expected_start: int | None = None
    ) -> bytes | None:
        kept = self.parts.setdefault(upload, bytearray())
        if expected_start not in (None, len(kept)):
            raise BadRequest(f"{len(kept)} bytes are there, so no part can begin at {expected_start}")
        kept += content or b""
        if total_size is None or len(kept) < total_size:
            return None
        return bytes(self.parts.pop(upload))


class _RequestHandler(emulator.RequestHandler):  # type: ignore[misc]  # it has no types
    def __init__(self, service: GcsEmulator, *args: Any) -> None:
        self.service = service
        super().__init__(service.storage, *args)

    def setup(self) -> None:
        super().setup()
        self.rfile = _Body(self.rfile, self._broke_off)

    def parse_request(self) -> bool:
        parsed: bool = super().parse_request()
        if parsed and not self.service.heeds_ranges:
            del self.headers["Range"]
        return parsed

    def log_message(self, *args: Any) -> None:
        self.service.requests.append(self.requestline)

    def _broke_off(self, data: bytes) -> None:
        """Of a part whose body broke off the service keeps what it got, in steps of 256 KiB."""
        upload = parse_qs(urlsplit(self.path).query).get("upload_id", [""])[0]
        begins = re.match(r"bytes (\d+)-", self.headers.get("Content-Range", ""))
        with _IN_TURN:
            kept = self.storage.parts.setdefault(upload, bytearray()) if upload else bytearray()
            if begins and int(begins[1]) == len(kept):
                kept += data[: len(data) // _STEP * _STEP]


class _Body:
    """A request's bytes. One that broke off is no request."""

    def __init__(self, file: Any, broke_off: Callable[[bytes], None]) -> None:
        self._file = file
        self._broke_off = broke_off

    def read(self, size: int) -> bytes:
        data = bytearray()
        with contextlib.suppress(ConnectionError):
            while len(data) < size and (more := self._file.read1(size - len(data))):
                data += more
        if len(data) < size:
            self._broke_off(bytes(data))
            raise ConnectionAbortedError("the body broke off")
        return bytes(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


# -- the conditions of a request --------------------------------------------------------------------------------------


def _generations(storage: Any, bucket: str, name: str) -> tuple[int, int]:
    """An object's generation and metageneration; 0 and 0 when there is none."""
    try:
        found = storage.get_file_obj(bucket, name)
    except NotFound:
        return 0, 0
    return int(found["generation"]), int(found["metageneration"])


def _refusal(query: dict[str, list[str]], generation: int, metageneration: int, *, reads: bool) -> int | None:
    """The status with which a request's conditions refuse it."""
    given = {name: int(values[0]) for name, values in query.items() if name.startswith(("ifGen", "ifMeta"))}
    if given.get("ifGenerationMatch", generation) != generation:
        return 412
    if "ifMetagenerationMatch" in given and (not generation or given["ifMetagenerationMatch"] != metageneration):
        return 412
    if given.get("ifGenerationNotMatch") == generation or given.get("ifMetagenerationNotMatch") == metageneration:
        return 304 if reads else 412
    return None


def _fail(response: Any, status: int, message: str, reason: str) -> None:
    response.status = HTTPStatus(status)
    response.json({"error": {"code": status, "message": message, "errors": [{"reason": reason, "domain": "global"}]}})


def _failing(fault: Fault, carry_out: Callable[[], Any], response: Any) -> None:
    if fault.applied:
        carry_out()
    if fault.status is None:
        raise ConnectionAbortedError("no answer, as a test wants it")
    _fail(response, fault.status, "A test wants it so.", "backendError")


def _insert_target(request: Any, storage: Any) -> tuple[str, str | None]:
    bucket, query = request.params["bucket_name"], request.query
    if "name" in query:
        return bucket, query["name"][0]
    if "upload_id" in query:
        return bucket, None
    data = request.data or {}
    return bucket, data.get("meta", data).get("name")


def _part_target(request: Any, storage: Any) -> tuple[str, str | None]:
    upload = storage.resumable.get(request.query["upload_id"][0], {})
    return request.params["bucket_name"], upload.get("name")


def _own_target(request: Any, storage: Any) -> tuple[str, str | None]:
    return request.params["bucket_name"], request.params["object_id"]


def _copy_target(request: Any, storage: Any) -> tuple[str, str | None]:
    return request.params["dest_bucket_name"], request.params["dest_object_id"]


_TARGETS: dict[Handler, Callable[[Any, Any], tuple[str, str | None]]] = {
    objects.insert: _insert_target,
    objects.upload_partial: _part_target,
    objects.delete: _own_target,
    objects.patch: _own_target,
    objects.get: _own_target,
    objects.download: _own_target,
    objects.compose: _own_target,
    objects.copy: _copy_target,
    objects.rewrite: _copy_target,
}
_NEED_THE_OBJECT = (objects.delete, objects.patch, objects.get, objects.download)


def _guarded(handler: Handler) -> Handler:
    """The handler in its turn, and only when the request's conditions hold."""

    def handle(request: Any, response: Any, storage: Any, *args: Any, **options: Any) -> Any:
        _ = request.data  # a slow sender holds up nobody else
        with _IN_TURN:
            if handler in (*_TARGETS, _paged) and request.params["bucket_name"] not in storage.buckets:
                return _fail(response, 404, "The specified bucket does not exist.", "notFound")
            if handler not in _TARGETS:
                return handler(request, response, storage, *args, **options)
            bucket, name = _TARGETS[handler](request, storage)
            needs = handler in _NEED_THE_OBJECT
            current = (0, 0) if name is None else _generations(storage, bucket, name)
            wanted = request.query.get("generation")
            if needs and current[0] and wanted and int(wanted[0]) != current[0]:
                return _fail(response, 404, "No such object generation.", "notFound")
            status = (
                None if name is None or (needs and not current[0]) else _refusal(request.query, *current, reads=needs)
            )
            if status is not None:
                return _fail(response, status, "A precondition did not hold.", "conditionNotMet")
            if handler is objects.insert and storage.faults:
                return _failing(storage.faults.pop(0), partial(handler, request, response, storage), response)
            if handler in (objects.get, objects.download):
                response["x-goog-generation"] = str(current[0])
            return handler(request, response, storage, *args, **options)

    return handle


# -- what it does not do by itself ------------------------------------------------------------------------------------


def _drop_upload(request: Any, response: Any, storage: Any, *args: Any, **options: Any) -> None:
    upload = request.query["upload_id"][0]
    if storage.resumable.pop(upload, None) is None:
        return _fail(response, 404, "No such upload.", "notFound")
    storage.parts.pop(upload, None)
    response.status = _ClientClosed
    return None


def _paged(request: Any, response: Any, storage: Any, *args: Any, **options: Any) -> None:
    objects.ls(request, response, storage, *args, **options)
    if response.status != HTTPStatus.OK:
        return
    page = json.loads(response._content)
    first = int(request.query.get("pageToken", ["0"])[0])
    most = min(int(request.query.get("maxResults", ["1000"])[0]), 1000)
    items = sorted(page["items"], key=lambda item: item["name"])
    page["items"] = items[first : first + most]
    if first + most < len(items):
        page["nextPageToken"] = str(first + most)
    response.json(page)


def _routes(methods: dict[str, Handler]) -> dict[str, Handler]:
    found = {method: _guarded(_paged if handler is objects.ls else handler) for method, handler in methods.items()}
    if objects.upload_partial in methods.values():
        found["DELETE"] = _guarded(_drop_upload)
    return found


def _resource(make: Handler) -> Handler:
    """The emulator's new objects have a metageneration of 2, and generations that two in one instant share."""
    last = 0

    def made(*args: Any, **options: Any) -> Any:
        nonlocal last
        resource = make(*args, **options)
        last = max(last + 1, int(resource["generation"]))
        return {**resource, "metageneration": "1", "generation": str(last)}

    return made


def _incomplete(response: Any, storage: Any, upload: str, fallback_end: int = 0) -> None:
    response.status = objects.GoogleHTTPStatus.RESUME_INCOMPLETE
    received = storage.get_resumable_byte_count(upload)
    if received:
        response["Range"] = f"bytes=0-{received - 1}"


objects._resumable_incomplete = _incomplete  # it says that one byte is there when none is
objects._make_object_resource = _resource(objects._make_object_resource)
emulator.HANDLERS = tuple((pattern, _routes(methods)) for pattern, methods in emulator.HANDLERS)
