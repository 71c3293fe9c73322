"""Google's own testbench, with its fault instructions, unmodified: each instruction for each request, by table.

Its dependencies are installed once into a venv beside its checkout, `venv-testbench`:

    python3 -m venv venv-testbench && venv-testbench/bin/pip install ./storage-testbench gunicorn

An instruction is given for the next requests that carry the id of a retry test; a line in between adds that header.
What concerns gRPC alone (`redirect-…`, `…-if-dp-enforced`) does not concern the daemon, which speaks HTTP.
"""

import io
import json
import socket
import subprocess
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.sources.repositories import repository
from tests.support.expect import until
from tests.support.faults import FaultyLine, Request
from tests.support.patience import patient

from sandkeep.errors import DataError
from sandkeep_store.archives.stores.gcs_upload import GcsUpload
from sandkeep_store.archives.stores.open import open_store
from sandkeep_store.archives.stores.store import ArchiveStore
from sandkeep_store.buckets import gcs_client
from sandkeep_store.buckets.config import Root, Storage
from sandkeep_store.locks.gcs import GcsStore

pytestmark = [pytest.mark.needs("source:storage-testbench"), pytest.mark.needs("gcs")]

PART = 512 * 1024
DATA = bytes(range(256)) * (3 * PART // 256) + b"the end"
DIGEST = sha256(DATA).hexdigest()
PATH = "filesystem_snapshots/snp_1/snp_1.tar.gz"
LOCK = "sandboxes/box/lock.json"


class Relay(FaultyLine):
    """A line that adds headers to requests."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.added: dict[str, str] = {}
        self.matching: Callable[[Request], bool] = lambda request: True
        self.most = 0

    def pass_on(self, request: Request, headers: Any) -> Any:
        if self.added and self.most and self.matching(request):
            self.most -= 1
            for name, value in self.added.items():
                headers[name] = value
        return super().pass_on(request, headers)


class Bench(NamedTuple):
    line: Relay
    url: str
    archives: ArchiveStore
    documents: GcsStore

    def instruct(self, method: str, *instructions: str) -> str:
        """Have the next requests of a method fail so; return the id by which the testbench counts them."""
        body = json.dumps({"instructions": {method: [*instructions]}, "transport": "HTTP"}).encode()
        made = json.loads(self._ask("/retry_test", body))
        self.line.added, self.line.matching, self.line.most = {"x-retry-test-id": made["id"]}, lambda _: True, 1000
        return str(made["id"])

    def is_through(self, test_id: str) -> bool:
        """Return True if all instructions have been followed."""
        return bool(json.loads(self._ask(f"/retry_test/{test_id}"))["completed"])

    def _ask(self, path: str, body: bytes | None = None) -> bytes:
        headers = {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(self.url + path, body, headers)) as answer:
            content: bytes = answer.read()
        return content


def python() -> Path:
    found = repository("storage-testbench").parent / "venv-testbench" / "bin" / "python"
    if not found.exists():
        pytest.skip(f"{found} is not there: see this file")
    return found


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The testbench as its README starts it, on a port of its own: its faults need gunicorn's sockets."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    command = [python(), "-m", "gunicorn", f"--bind=127.0.0.1:{port}", "--worker-class=sync", "--threads=10",
               "testbench:run()"]  # fmt: skip
    log = tmp_path_factory.mktemp("testbench") / "log"
    with open(log, "wb") as said:
        process = subprocess.Popen(command, cwd=repository("storage-testbench"), stdout=said, stderr=said)

    def answers() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            assert process.poll() is None, log.read_text()
            return False
        return True

    try:
        until(answers)
        yield port
    finally:
        process.terminate()
        process.wait(patient(60))


@pytest.fixture
def bench(service: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(GcsUpload, "part_bytes", PART)
    monkeypatch.setattr(gcs_client, "answer_s", lambda patience_s: 3.0)
    monkeypatch.setattr("sandkeep_store.locks.gcs.ANSWER_S", 3.0)
    url, name = f"http://127.0.0.1:{service}", f"bucket-{uuid.uuid4().hex}"
    headers = {"Content-Type": "application/json"}
    body = json.dumps({"name": name}).encode()
    urllib.request.urlopen(urllib.request.Request(f"{url}/storage/v1/b?project=test", body, headers)).close()
    with Relay(service) as line:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", line.url)
        archives = open_store(Root("gcs", name), Storage({"STORAGE_EMULATOR_HOST": line.url}), patience_s=60)
        yield Bench(line, url, archives, GcsStore(name))


# -- the requests -----------------------------------------------------------------------------------------------------


def write(bench: Bench) -> None:
    assert bench.archives.write(PATH, io.BytesIO(DATA), sha256=DIGEST).size_bytes == len(DATA)


def read(bench: Bench) -> None:
    assert downloaded(bench.archives) == DATA


def downloaded(store: ArchiveStore) -> bytes:
    copy = io.BytesIO()

    def begin() -> Callable[[bytes], object]:
        copy.seek(0)
        copy.truncate()
        return copy.write

    store.download(PATH, begin)
    return copy.getvalue()


def list_all(bench: Bench) -> None:
    assert [found.path for found in bench.archives.objects()] == [PATH]


def delete(bench: Bench) -> None:
    bench.archives.delete(PATH)
    assert list(bench.archives.objects()) == []


def write_document(bench: Bench) -> None:
    written = bench.documents.write(LOCK, b'{"a":1}', None)
    found = bench.documents.read(LOCK)
    assert found is not None
    assert found.content == b'{"a":1}'
    assert written is None or written.version == found.version


def read_document(bench: Bench) -> None:
    found = bench.documents.read(LOCK)
    assert found is not None
    assert found.content == b'{"a":1}'


STATUSES = [f"return-{status}" for status in (408, 429, 500, 502, 503, 504)]
INSERT, GET, LIST, DELETE = (f"storage.objects.{name}" for name in ("insert", "get", "list", "delete"))
ANY = [*STATUSES, "return-reset-connection"]
UPLOAD = [
    "return-503-after-256K", "return-503-after-768K", "return-408-after-1536K", "return-broken-stream",
    "return-broken-stream-final-chunk-after-0B", "return-broken-stream-final-chunk-after-10B",
    "stall-for-4s-after-256K",
]  # fmt: skip
DOWNLOAD = ["return-broken-stream", "return-broken-stream-after-256K", "stall-for-4s-after-256K"]

TABLE: list[tuple[Callable[[Bench], None], str, str, tuple[Callable[[Bench], None], ...]]] = [
    *((write, INSERT, instruction, ()) for instruction in [*ANY, *UPLOAD]),
    *((write_document, INSERT, instruction, ()) for instruction in [*ANY, "return-broken-stream"]),
    *((read, GET, instruction, (write,)) for instruction in [*ANY, *DOWNLOAD]),
    *((read_document, GET, instruction, (write_document,)) for instruction in [*ANY, "return-broken-stream"]),
    *((list_all, LIST, instruction, (write,)) for instruction in [*ANY, "return-broken-stream"]),
    *((delete, DELETE, instruction, (write,)) for instruction in ANY),
]


@pytest.mark.parametrize(
    ("call", "method", "instruction", "prepare"), TABLE, ids=[f"{row[0].__name__} {row[2]}" for row in TABLE]
)
def test_each_instruction_for_each_request(
    bench: Bench, call: Any, method: str, instruction: str, prepare: tuple[Any, ...]
) -> None:
    for before in prepare:
        before(bench)
    test_id = bench.instruct(method, instruction)
    call(bench)
    assert bench.is_through(test_id)
    bench.line.added = {}
    if call is write:
        read(bench)


HEADER = [
    "return-broken-stream", "return-corrupted-data", "stall-always", "stall-at-256KiB", "return-503-after-256K",
    "return-503-after-256K/retry-1", "return-503-after-256K/retry-2",
]  # fmt: skip
"""Instructions by a header of their own: for downloads, and the third last for uploads."""


@pytest.mark.parametrize("instruction", HEADER)
@pytest.mark.parametrize("call", [read, read_document, write])
def test_instructions_by_header(bench: Bench, call: Any, instruction: str) -> None:
    if call is not write:
        (write if call is read else write_document)(bench)
    bench.line.added = {"x-goog-emulator-instructions": instruction}
    bench.line.most = 1
    bench.line.matching = lambda request: "/download/" in request.target or "upload_id" in request.target
    call(bench)
    assert bench.line.most == 0
    bench.line.added = {}
    if call is write:
        read(bench)


def test_a_download_that_is_always_corrupted_is_called_damaged(bench: Bench) -> None:
    write(bench)
    bench.line.added, bench.line.most = {"x-goog-emulator-instructions": "return-corrupted-data"}, 1000
    bench.line.matching = lambda request: "/download/" in request.target
    with pytest.raises(DataError) as caught:
        downloaded(bench.archives)
    assert (caught.value.code, 1000 - bench.line.most) == ("snapshot_corrupt", 2)
