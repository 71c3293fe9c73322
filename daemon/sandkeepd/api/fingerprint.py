"""The identity of a command: its method, and a digest of its parameters."""

from hashlib import blake2b
from typing import Any, Final

import msgspec

from sandkeep.protocol.methods import Method, Mutation
from sandkeep_store.threads import in_thread

_DIGEST_BYTES: Final = 16
_LARGE_BYTES: Final = 64 * 1024

_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode


async def fingerprint(method: Method, params: Mutation) -> str:
    """Return the method's name and a digest. It goes on record only once it is keyed, as short values could be guessed
    from it.

    Excluded are the `command_id`, parameters at their defaults, so that a newer daemon with more of them gets the same
    fingerprint, and the values of secrets, which are in no record in any form.
    """
    if _size(params) > _LARGE_BYTES:
        return await in_thread(_of, method, params)
    return _of(method, params)


def _of(method: Method, params: Mutation) -> str:
    bare: dict[str, Any] = {"command_id": None}
    secrets = getattr(params, "secrets", None)
    if secrets:
        bare["secrets"] = dict.fromkeys(secrets, "")
    said = _encode(msgspec.structs.replace(params, **bare))
    return f"{method.name} {blake2b(said, digest_size=_DIGEST_BYTES).hexdigest()}"


def _size(params: Mutation) -> int:
    """Return the size of the large parameters in bytes."""
    brought = (getattr(params, name, None) for name in ("data", "stdin"))
    return sum(len(value) for value in brought if isinstance(value, bytes))
