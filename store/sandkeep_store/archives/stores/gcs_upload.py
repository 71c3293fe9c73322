"""One upload to Google Cloud Storage: the parts of a resumable session.

A part is kept until the service has all of it. After a broken connection the service is asked how much it has, and the
rest is sent again.
"""

import base64
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final

from sandkeep.errors import ProviderError, SandkeepError
from sandkeep_store.archives.stores.retry import RetryLimit
from sandkeep_store.archives.stores.types import Stored, Waiting
from sandkeep_store.buckets.answers import parsing
from sandkeep_store.buckets.gcs_client import refusal, timeouts, translated_errors

PART_BYTES: Final = 8 * 1024**2
"""A multiple of 256 KiB, as the service wants it."""

_HELD: Final = re.compile(r"bytes=0-([0-9]{1,18})")


@dataclass
class GcsUpload:
    """See `types.Upload`. `url` is the session's; `landed` tells, given an error, whether the object is there."""

    part_bytes: ClassVar = PART_BYTES

    http: Any
    url: str
    where: str
    patience_s: float
    waiting: Waiting
    landed: Callable[[SandkeepError], Stored]

    def __post_init__(self) -> None:
        from google_crc32c import Checksum

        self._checksum = Checksum()
        self._sent = 0

    def send(self, part: bytes) -> None:
        """See `types.Upload`."""
        self._checksum.update(part)
        self._transfer(part, None)
        self._sent += len(part)

    def finish(self, part: bytes) -> Stored:
        """See `types.Upload`. The service compares the whole with our checksum before the object appears. Where its
        answer cannot be read, the object itself tells whether it is there.
        """
        self._checksum.update(part)
        try:
            answer = self._transfer(part, self._sent + len(part))
            with parsing(self.where):
                return stored_from(answer.json())
        except SandkeepError as error:
            return self.landed(error)

    def abort(self) -> None:
        """See `types.Upload`. A session that could not be dropped ends by itself after a week."""
        with suppress(SandkeepError), translated_errors(self.where):
            self.http.delete(self.url, timeout=timeouts(self.patience_s))

    def _transfer(self, part: bytes, total: int | None) -> Any:
        """Send a part until the service has all of it. With `total` it is the last, and the answer, which is returned,
        has the object's resource.
        """
        patience = RetryLimit(self.patience_s, self.waiting)
        held: int | None = self._sent
        while True:
            try:
                answer = self._ask() if held is None else self._put(part[held - self._sent :], held, total)
                if answer.status_code in (200, 201):
                    return answer
                held = self._held(answer, len(part))
                if total is None and held == self._sent + len(part):
                    return answer
            except ProviderError as error:
                patience.wait(error, moved=False)
                held = None

    def _put(self, rest: bytes, at: int, total: int | None) -> Any:
        all_of_it = "*" if total is None else str(total)
        headers = {"Content-Range": f"bytes {at}-{at + len(rest) - 1}/{all_of_it}" if rest else f"bytes */{all_of_it}"}
        if total is not None:
            headers["X-Goog-Hash"] = f"crc32c={base64.b64encode(self._checksum.digest()).decode()}"
        return self._request(rest, headers)

    def _ask(self) -> Any:
        return self._request(b"", {"Content-Range": "bytes */*"})

    def _request(self, body: bytes, headers: dict[str, str]) -> Any:
        with translated_errors(self.where):
            return self.http.put(
                self.url, data=body, headers=headers, timeout=timeouts(self.patience_s), allow_redirects=False
            )

    def _held(self, answer: Any, part_bytes: int) -> int:
        """Return the number of bytes of the whole object that the service has received."""
        if answer.status_code != 308:
            raise refusal(self.where, answer.status_code, answer.text[:1000])
        found = _HELD.fullmatch(answer.headers.get("Range", ""))
        held = int(found[1]) + 1 if found else 0
        if not self._sent <= held <= self._sent + part_bytes:
            raise refusal(self.where, answer.status_code, "it lost what it had")
        return held


def stored_from(resource: dict[str, Any]) -> Stored:
    """Convert an object resource of the JSON API into `Stored`."""
    return Stored(
        str(resource["name"]),
        int(resource["size"]),
        str(resource["generation"]),
        {str(key): str(value) for key, value in (resource.get("metadata") or {}).items()},
        datetime.fromisoformat(resource["updated"]).timestamp(),
        str(resource.get("crc32c") or ""),
    )
