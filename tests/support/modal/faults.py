"""Faults that tests inject into calls."""

import re

from grpclib import GRPCError, Status
from modal_proto import api_pb2
from tests.support.doubles.faults import Disturbance


class Fault(Disturbance):
    """Calls to disturb, and how.

    Those whose name the pattern matches entirely are disturbed, see `Disturbance`. They may lose their stream alone
    (`reset`), or fail with the gRPC `status`, which says `retry_after` seconds; a call that streams, after so many
    bytes.
    """

    call: str
    reset: bool = False
    status: str | None = None
    retry_after: float | None = None
    after_bytes: int | None = None

    def matches(self, *request: str) -> bool:
        """Match the name of the call."""
        return bool(re.fullmatch(self.call, request[0]))

    @property
    def before(self) -> bool:
        """True if it comes before the call is carried out."""
        return not self.after and self.after_bytes is None

    def error(self) -> GRPCError | None:
        """Return the error to answer with."""
        if self.status is None:
            return None
        policy = None if self.retry_after is None else [api_pb2.RPCRetryPolicy(retry_after_secs=self.retry_after)]
        return GRPCError(Status[self.status], self.message, policy)
