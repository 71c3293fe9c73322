"""Admission of pods by webhooks: what other people's programs in a cluster change, and refuse."""

from dataclasses import replace
from typing import Any

from tests.support.kubernetes.errors import ApiError
from tests.support.kubernetes.resources import Object
from tests.support.kubernetes.store import Store


class Admission:
    """See `Component`."""

    def __init__(self, store: Store) -> None:
        [pods] = [found for found in store.resources() if found.key == "pods"]
        self._admit = pods.admit
        self._sidecar: Object | None = None
        self._refusal = ""
        store.register(replace(pods, admit=self._admitted))

    async def run(self) -> None:
        """See `Component`. It acts as pods are made, and then alone."""

    def script(self, *, sidecar: Object | None = None, refuse_pods: str | None = None, **others: Any) -> None:
        """Options: `sidecar`, a container that all new pods get as their first, `{}` for none; `refuse_pods`, the
        message with which none is made, "" for none.
        """
        self._sidecar = sidecar if sidecar is not None else self._sidecar
        self._refusal = refuse_pods if refuse_pods is not None else self._refusal

    def _admitted(self, new: Object, old: Object | None) -> None:
        if old is None and self._refusal:
            raise ApiError(500, "InternalError", f"Internal error occurred: {self._refusal}")
        if old is None and self._sidecar:
            new["spec"]["containers"] = [self._sidecar, *new["spec"]["containers"]]
        self._admit(new, old)
