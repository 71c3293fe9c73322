"""Follow a kind of object in the store, also across a compaction of its events."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from tests.support.kubernetes.errors import ApiError
from tests.support.kubernetes.store import Store

Object = dict[str, Any]
RETRY_S = 0.1


async def follow(store: Store, resource: str) -> AsyncIterator[tuple[str, Object]]:
    """Yield (type, object) for all objects and each change; objects may come as ADDED more than once."""
    known: dict[str, Object] = {}
    while True:
        try:
            async for kind, found in store.watch(resource):
                known[found["metadata"]["uid"]] = found
                if kind == "DELETED":
                    del known[found["metadata"]["uid"]]
                yield kind, found
        except ApiError as error:
            if error.code not in (404, 410):
                raise
            if error.code == 404:  # the kind is not defined yet
                await asyncio.sleep(RETRY_S)
                continue
        for uid, found in list(known.items()):
            meta = found["metadata"]
            now = store.get(resource, meta.get("namespace"), meta["name"])
            if now is None or now["metadata"]["uid"] != uid:
                del known[uid]
                yield "DELETED", found
