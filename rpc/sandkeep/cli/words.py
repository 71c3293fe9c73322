"""Kinds of words on a command line, so that a shell can complete them."""

from collections.abc import Callable
from typing import Any, Final

import click

LOOKUPS: Final[dict[str, Callable[[click.Context, str], list[Any]]]] = {}
"""Completion of each kind, put here by `commands.completion`: no other command loads it."""


class Word(click.ParamType[str]):
    """Text of a kind that the shell can complete; see `LOOKUPS`."""

    def __init__(self, kind: str) -> None:
        self.name = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """Return the names of this kind that begin so."""
        return LOOKUPS[self.name](ctx, incomplete)


SANDBOX: Final = Word("sandbox")
IMAGE: Final = Word("image")
SNAPSHOT: Final = Word("snapshot")
SESSION: Final = Word("session")
IMAGE_OR_REFERENCE: Final = Word("image or reference")
CHECKPOINT: Final = Word("checkpoint")
ARTIFACT: Final = Word("artifact")
SOURCE: Final = Word("image source")
REFERENCE: Final = Word("reference")
LOCK: Final = Word("lock")
KEY: Final = Word("key")
MERGE: Final = Word("merge")
COMPARED: Final = Word("sandbox, snapshot or image")
BRANCH_SOURCE: Final = Word("branch source")
PROVENANCE: Final = Word("branch, merge or commit")
"""Commits are in no list, and not completed."""
CONFLICT: Final = Word("path in conflict")
SIDE: Final = Word("side of a conflict")
DECISION: Final = Word("decision")
CONFLICT_FILE: Final = Word("file for a conflict")
PROCESS: Final = Word("process")
RUNNING: Final = Word("running process")
LOCATION: Final = Word("location")
SIGNAL: Final = Word("signal")
EVENT_TYPE: Final = Word("event type")
PROVIDER: Final = Word("provider")
METHOD: Final = Word("method")
VARIABLE: Final = Word("variable")
INSIDE: Final = Word("directory inside")
DIRECTORY: Final = Word("directory")
FILE: Final = Word("file")
