"""Sandkeep keeps sandboxes. This is what a client needs: `connect`, the models, and the errors.

    async with sandkeep.connect() as client:
        result = await client.sandbox.exec(sandbox_id, ["true"])

The same on asyncio is `sandkeep.aio.connect`, and for threads and scripts `sandkeep.blocking.connect`. `StreamClient`
follows output and events, attaches, and copies files, over websockets. Everything here is imported on first use, so
that importing the package costs next to nothing, and trio is loaded only by those who use it.
"""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sandkeep import aio as aio
    from sandkeep import blocking as blocking
    from sandkeep import model as model
    from sandkeep.clients.trio import Client as Client
    from sandkeep.clients.trio import connect as connect
    from sandkeep.errors import CallerError as CallerError
    from sandkeep.errors import DaemonError as DaemonError
    from sandkeep.errors import DataError as DataError
    from sandkeep.errors import ProviderError as ProviderError
    from sandkeep.errors import SandkeepError as SandkeepError
    from sandkeep.errors import SetupError as SetupError
    from sandkeep.errors import StateError as StateError
    from sandkeep.stream import StreamClient as StreamClient
    from sandkeep.typed import AsyncArtifact as AsyncArtifact
    from sandkeep.typed import AsyncCheckpoint as AsyncCheckpoint
    from sandkeep.typed import AsyncImage as AsyncImage
    from sandkeep.typed import AsyncProcess as AsyncProcess
    from sandkeep.typed import AsyncSandbox as AsyncSandbox
    from sandkeep.typed import AsyncSession as AsyncSession
    from sandkeep.typed import AsyncSnapshot as AsyncSnapshot
    from sandkeep.typed import AsyncVolume as AsyncVolume
    from sandkeep.version import VERSION

    __version__: Final = VERSION

__all__ = [
    "AsyncArtifact",
    "AsyncCheckpoint",
    "AsyncImage",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncSession",
    "AsyncSnapshot",
    "AsyncVolume",
    "CallerError",
    "Client",
    "DaemonError",
    "DataError",
    "ProviderError",
    "SandkeepError",
    "SetupError",
    "StateError",
    "StreamClient",
    "aio",
    "blocking",
    "connect",
    "model",
]

_MODULES: Final = ("aio", "blocking", "model")
_HOMES: Final = {"connect": "clients.trio", "Client": "clients.trio", "StreamClient": "stream"}
"""Modules of the names of `__all__`; those of the others, the errors, is `errors`."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "__version__":
        return import_module(f"{__name__}.version").VERSION
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in __all__ and name.startswith("Async"):
        return import_module(f"{__name__}.clients.handles").named(name)
    if name in __all__:
        return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
