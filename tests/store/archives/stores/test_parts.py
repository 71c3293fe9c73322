"""How a source of bytes is cut into parts, whatever pieces it comes in."""

import hashlib
import io
import itertools
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkeep.errors import DataError, ProviderError
from sandkeep_store.archives.stores.retry import RetryLimit
from sandkeep_store.archives.stores.transfer import Reader, VerifiedSource, send
from sandkeep_store.archives.stores.types import Stored


class Recorded:
    """An upload whose parts have the sizes that a test gives."""

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = itertools.cycle(sizes)
        self.part_bytes = next(self._sizes)
        self.parts: list[bytes] = []

    def send(self, part: bytes) -> None:
        assert len(part) == self.part_bytes
        self.parts.append(bytes(part))
        self.part_bytes = next(self._sizes)

    def finish(self, part: bytes) -> Any:
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError


class Trickle(io.RawIOBase):
    """A file that gives as little as it likes."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = [piece for piece in pieces if piece]

    def read(self, size: int = -1) -> bytes:
        if not self._pieces:
            return b""
        piece, self._pieces[0] = self._pieces[0][:size], self._pieces[0][size:]
        if not self._pieces[0]:
            self._pieces.pop(0)
        return piece


@given(pieces=st.lists(st.binary(max_size=40)), sizes=st.lists(st.integers(1, 64), min_size=1), file=st.booleans())
def test_parts_are_as_long_as_they_have_to_be_and_all_is_in_them(
    pieces: list[bytes], sizes: list[int], file: bool
) -> None:
    whole = b"".join(pieces)
    source: Any = Trickle(pieces) if file else iter(pieces)
    upload = Recorded(sizes)
    passed: list[int] = []
    measured = VerifiedSource(source, "it", len(whole), hashlib.sha256(whole).hexdigest())
    last = send(upload, measured, passed.append)
    assert len(last) < upload.part_bytes
    assert b"".join([*upload.parts, last]) == whole
    assert passed == list(itertools.accumulate(map(len, upload.parts)))


@given(wrong=st.integers(0, 30).filter(lambda size: size != 20))
def test_a_source_of_another_size_is_told(wrong: int) -> None:
    with pytest.raises(DataError, match=f"20 bytes and not {wrong}"):
        send(Recorded([7]), VerifiedSource(iter([bytes(20)]), "it", wrong, None), lambda _: None)


# -- reading that breaks off ------------------------------------------------------------------------------------------

CONTENT = bytes(range(256))
STORED = Stored("a", len(CONTENT), "1", {}, 0.0)
AWAY = ProviderError("provider_unavailable", "try again")


@given(breaks=st.lists(st.integers(0, 40), max_size=12), step=st.integers(1, 50))
def test_reading_goes_on_with_the_next_byte(breaks: list[int], step: int) -> None:
    """However often it breaks off, as long as it got anywhere in between."""
    left = list(breaks)
    asked: list[int] = []

    def fetch(stored: Stored, offset: int) -> Any:
        asked.append(offset)
        end = min(len(CONTENT), offset + 1 + left.pop(0)) if left else len(CONTENT)
        for start in range(offset, end, step):
            yield CONTENT[start : min(start + step, end)]
        if end < len(CONTENT):
            raise AWAY

    progress: list[int] = []
    with Reader("it", STORED, fetch, 60.0, progress.append) as reader:
        assert b"".join(without_pauses(reader)) == CONTENT
    assert asked == sorted(asked)
    assert progress[-1] == len(CONTENT)


def without_pauses(reader: Reader) -> Any:
    reader._patience.wait = lambda error, moved: None  # type: ignore[method-assign]
    return iter(reader)


def test_patience_has_an_end_which_is_the_error_itself() -> None:
    heard: list[None] = []
    patience = RetryLimit(0.2, lambda: heard.append(None))

    def wait_on() -> None:
        for _ in range(1000):
            patience.wait(AWAY, moved=False)

    with pytest.raises(ProviderError) as caught:
        wait_on()
    assert caught.value is AWAY
    assert 1 <= len(heard) < 1000
    with pytest.raises(ProviderError):
        RetryLimit(0.0, lambda: None).wait(AWAY, moved=True)


def test_no_sdk_is_imported_before_a_bucket_is_used() -> None:
    program = (
        "import sys; from sandkeep_store.archives.stores.open import open_store; "
        "from sandkeep_store.buckets.config import Root; "
        "import sandkeep_store.archives.stores.gcs, sandkeep_store.archives.stores.s3; "
        "open_store(Root('directory', '/nowhere')); "
        "print([name for name in ('google.cloud', 'boto3', 'botocore', 'requests', 'trio') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
