"""Faults that tests inject into requests."""

import re

from tests.support.doubles.faults import Disturbance


class Fault(Disturbance):
    """Requests to disturb, and how.

    Those whose method and path with query contain the patterns are disturbed, see `Disturbance`, or fail with `status`.
    """

    method: str = ""
    path: str = ""
    status: int | None = None
    reason: str | None = None
    retry_after: int | None = None

    def matches(self, *request: str) -> bool:
        """Match the method and the path with its query."""
        method, path = request
        return bool(re.search(self.method, method) and re.search(self.path, path))
