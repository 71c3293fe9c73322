"""Faults that tests inject into requests."""

import re

from tests.support.doubles.faults import Disturbance


class Fault(Disturbance):
    """Requests to disturb, and how.

    Those whose method and path with query contain the patterns wait or hang, see `Disturbance`. Then they lose their
    connection (`drop`), or fail with `status`; with `after`, only once the request was carried out.
    """

    method: str = ""
    path: str = ""
    drop: bool = False
    status: int | None = None
    reason: str | None = None
    message: str = "injected fault"
    retry_after: int | None = None
    after: bool = False

    def matches(self, *request: str) -> bool:
        """Match the method and the path with its query."""
        method, path = request
        return bool(re.search(self.method, method) and re.search(self.path, path))
