"""The manifest of a checkpoint: the processes that run in it."""

from collections.abc import Sequence
from typing import Final

import msgspec

from sandkeep import events
from sandkeep_store.views.processes import ProcessState

MANIFEST: Final = "processes.json"


class SavedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that runs in a checkpoint."""

    process_id: str
    requested: events.ProcessLaunchRequested


_manifest = msgspec.json.Decoder(list[SavedProcess])


def write_manifest(directory: str, running: Sequence[ProcessState]) -> None:
    """Write the manifest into a checkpoint's directory."""
    kept = [SavedProcess(process_id=process.process_id, requested=process.requested) for process in running]
    with open(f"{directory}/{MANIFEST}", "wb") as file:
        file.write(msgspec.json.encode(kept))


def read_manifest(directory: str) -> list[SavedProcess]:
    """Read the manifest from a checkpoint's directory, which was verified."""
    with open(f"{directory}/{MANIFEST}", "rb") as file:
        return _manifest.decode(file.read())
