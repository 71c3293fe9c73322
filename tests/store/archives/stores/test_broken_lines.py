"""Archives over lines that break: the real clients of GCS and S3, the services, and a proxy between that cuts.

What has to hold: a transfer goes on with what is missing, an answer that was lost is no failure, and a service that is
gone for good is said to be, with nothing of the object to be seen.
"""

import http.server
import io
import random
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple, cast

import pytest
from tests.support.gcs import GcsEmulator
from tests.support.proxy import BreakingLine

from sandkeep.errors import DataError, ProviderError, SetupError, StateError
from sandkeep_store.archives.stores.gcs import GcsArchives
from sandkeep_store.archives.stores.open import open_store
from sandkeep_store.archives.stores.store import ArchiveStore
from sandkeep_store.buckets.config import Root, Storage

PART = 8 * 1024**2
DATA = random.Random(7).randbytes(2 * PART + 12_345)
PATH = "filesystem_snapshots/snp_1/snp_1.tar.gz"


class Far(NamedTuple):
    """A store behind a line, the same store without, and what is unfinished there."""

    store: ArchiveStore
    line: BreakingLine
    near: ArchiveStore
    unfinished: Any
    last_request: re.Pattern[bytes]


SERVICES = [pytest.param(name, marks=pytest.mark.needs(name)) for name in ("gcs", "s3")]
IN_GCS = pytest.mark.parametrize("line", [SERVICES[0]], indirect=True)
LAST_REQUEST = {"gcs": rb"Content-Range: bytes \d+-\d+/\d", "s3": rb"POST [^ ]*uploadId"}


@pytest.fixture(params=SERVICES, scope="module")
def line(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any, BreakingLine]]:
    """A service and a line to it. Making a client of S3 takes a while, so they are for all tests."""
    service = request.getfixturevalue(request.param)
    with BreakingLine(service.port) as line:
        yield request.param, service, line


@pytest.fixture
def far(line: tuple[str, Any, BreakingLine], request: pytest.FixtureRequest) -> Far:
    where, service, proxy = line
    bucket = request.getfixturevalue(f"{where}_bucket")
    proxy.mend()
    far_off, near = (
        open_store(Root(where, bucket), settings(where, bucket, url), patience_s=30) for url in (proxy.url, service.url)
    )
    return Far(far_off, proxy, near, lambda: service.unfinished(bucket), re.compile(LAST_REQUEST[where]))


def settings(where: str, bucket: str, url: str) -> Storage:
    if where == "gcs":
        return Storage({"STORAGE_EMULATOR_HOST": url})
    return Storage({"SANDBOX_S3_BUCKET": bucket, "SANDBOX_S3_ENDPOINT_URL": url})


def hasty(far: Far) -> ArchiveStore:
    """The store behind the line, for one who soon gives up."""
    root = far.store.root
    return open_store(root, settings(root.where, root.base, far.line.url), patience_s=0.2)


def content(store: ArchiveStore) -> bytes:
    with store.read(PATH) as archive:
        return b"".join(archive)


def soaked(*cuts: int) -> Any:
    return pytest.param([*cuts], marks=pytest.mark.soak)


@pytest.mark.parametrize("cuts", [[2_000_000, 5_000_000, 15_000_000], soaked(1000), soaked(3_000_000), soaked(PART)])
def test_an_upload_goes_on_after_the_line_broke(far: Far, cuts: list[int]) -> None:
    far.line.cut_up = list(cuts)
    stored = far.store.write(PATH, io.BytesIO(DATA), size_bytes=len(DATA))
    assert far.line.broken == len(cuts)
    assert stored.size_bytes == len(DATA)
    assert content(far.near) == DATA
    assert far.unfinished() == []


@pytest.mark.parametrize("cuts", [[2_000_000, 5_000_000, 5_000_010, 15_000_000], soaked(1000), soaked(3_000_000)])
def test_a_download_goes_on_after_the_line_broke(far: Far, cuts: list[int]) -> None:
    far.near.write(PATH, [DATA])
    far.line.cut_down = list(cuts)
    assert content(far.store) == DATA
    assert far.line.broken == len(cuts)


@IN_GCS
def test_an_upload_goes_on_with_the_byte_that_the_service_has_not(far: Far) -> None:
    """Of a part that broke off GCS keeps what it got. Here an earlier attempt had brought 256 KiB of the first part."""
    upload = cast("GcsArchives", far.near)._begin(PATH, {}, lambda: None)
    upload._put(DATA[: 256 * 1024], 0, None)
    upload.send(DATA[:PART])
    upload.send(DATA[PART : 2 * PART])
    upload.finish(DATA[2 * PART :])
    assert content(far.near) == DATA


@IN_GCS
def test_a_service_that_heeds_no_ranges_is_not_believed(
    far: Far, gcs: GcsEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    far.near.write(PATH, [DATA])
    monkeypatch.setattr(gcs, "heeds_ranges", False)
    far.line.cut_down = [3_000_000]
    with suppress(ProviderError):  # unless the line was cut before anything of it was taken: then it may begin anew
        assert content(hasty(far)) == DATA


def test_a_lost_answer_is_no_failure(far: Far) -> None:
    far.line.lose_answer = far.last_request
    stored = far.store.write(PATH, io.BytesIO(DATA))
    assert far.line.broken == 1
    assert stored.generation == far.near.stat(PATH).generation
    assert content(far.near) == DATA
    assert far.unfinished() == []


def test_a_lost_answer_does_not_make_another_writers_object_ours(far: Far) -> None:
    """Ours is refused because theirs is there, and we do not hear of it; asking again must not take theirs for ours."""

    def source() -> Iterator[bytes]:
        yield DATA
        far.near.write(PATH, [b"theirs"])
        far.line.lose_answer = far.last_request

    with pytest.raises(StateError) as caught:
        far.store.write(PATH, source())
    assert caught.value.code == "conflict"
    assert content(far.near) == b"theirs"


def test_a_service_that_is_gone_is_said_to_be(far: Far) -> None:
    def source() -> Iterator[bytes]:
        yield DATA
        far.line.down = True
        far.line.break_all()

    store = hasty(far)
    with pytest.raises(ProviderError, match="try again"):
        store.write(PATH, source())
    for name, call in CALLS.items():
        with pytest.raises(ProviderError) as caught:
            call(store)
        assert (name, caught.value.code) == (name, "provider_unavailable")
    assert list(far.near.objects()) == []
    far.line.down = False
    assert far.store.write(PATH, io.BytesIO(DATA)).size_bytes == len(DATA)


class GivenUp(Exception):
    pass


def test_a_transfer_that_waits_for_the_service_can_be_given_up(far: Far) -> None:
    def progress(passed: int) -> None:
        if passed and far.line.down:
            raise GivenUp
        far.line.down = passed > 0
        far.line.break_all()

    patient = open_store(far.store.root, settings(far.store.root.where, far.store.root.base, far.line.url))
    with pytest.raises(GivenUp):
        patient.write(PATH, io.BytesIO(DATA), progress=progress)
    far.line.mend()
    far.near.write(PATH, [DATA])
    with patient.read(PATH, progress=progress) as archive, pytest.raises(GivenUp):
        b"".join(archive)


def test_a_service_that_goes_during_a_download(far: Far) -> None:
    far.near.write(PATH, [DATA])

    def read() -> None:
        with hasty(far).read(PATH) as archive:
            for _ in archive:
                far.line.down = True
                far.line.break_all()

    with pytest.raises(ProviderError, match="try again"):
        read()


# -- services that answer, but not what one would like ----------------------------------------------------------------


class Answering(http.server.ThreadingHTTPServer):
    """A service that gives every request the same answer."""

    status = 200


class _Handler(http.server.BaseHTTPRequestHandler):
    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def answering() -> Iterator[Answering]:
    with Answering(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


CALLS = {
    "stat": lambda store: store.stat(PATH),
    "write": lambda store: store.write(PATH, [b"x"]),
    "delete": lambda store: store.delete(PATH),
    "objects": lambda store: list(store.objects()),
}


@pytest.mark.parametrize("where", SERVICES)
def test_an_error_of_the_service_says_whose_fault_it_is(
    where: Any, answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    url = f"http://127.0.0.1:{answering.server_port}"
    store = open_store(Root(where, "bucket"), settings(where, "bucket", url), patience_s=0.2)
    for answering.status, code in ((401, "not_configured"), (403, "not_configured"), (500, "provider_unavailable")):
        for name, call in CALLS.items():
            with pytest.raises((ProviderError, SetupError)) as caught:
                call(store)
            assert (answering.status, name, caught.value.code) == (answering.status, name, code)
            assert "bucket" in caught.value.message


def test_a_bucket_that_is_not_there_is_a_matter_of_settings(far: Far) -> None:
    root = Root(far.store.root.where, "no-such-bucket")
    store = open_store(root, settings(root.where, root.base, far.line.url), patience_s=1)
    for name, call in CALLS.items():
        with pytest.raises((SetupError, DataError)) as caught:
            call(store)
        assert (name, caught.value.code) == (name, "not_configured")
        assert "no-such-bucket" in caught.value.message


@IN_GCS
def test_bytes_that_are_not_what_the_service_says(far: Far, gcs: GcsEmulator) -> None:
    """A truncated object, and one that grew: neither is taken for whole."""
    far.near.write(PATH, [DATA])
    for wrong in (DATA[:-1], DATA[: PART // 2], b"", DATA + b"x"):
        gcs.overwrite(far.store.root.base, PATH, wrong)
        with pytest.raises(DataError) as caught:
            content(far.store)
        assert caught.value.code == "snapshot_corrupt"
