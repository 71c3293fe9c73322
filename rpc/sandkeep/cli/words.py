"""Kinds of words on a command line, so that a shell can complete them."""

from collections.abc import Callable
from typing import Any, Final

import click

LOOKUPS: Final[dict[str, Callable[[click.Context, str], list[Any]]]] = {}
"""Completion of each kind, put here by `commands.completion`: no other command loads it."""


_LISTED_BY: Final = {
    "sandbox": "sandkeep ls", "image": "sandkeep image ls", "snapshot": "sandkeep snapshot ls",
    "process": "sandkeep ps SANDBOX --all", "running process": "sandkeep ps SANDBOX",
    "checkpoint": "sandkeep checkpoint ls", "artifact": "sandkeep artifact ls", "session": "sandkeep session ls",
    "volume": "sandkeep volume ls",
}  # fmt: skip
"""Commands that show the words of a kind."""


class Word(click.ParamType[str]):
    """Text of a kind that the shell can complete; see `LOOKUPS`. Unless it `may_be_empty`, empty text is refused."""

    def __init__(self, kind: str, *, may_be_empty: bool = False) -> None:
        self.name = kind
        self._may_be_empty = may_be_empty

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text."""
        if value == "" and not self._may_be_empty:
            self.fail("it is empty: maybe a variable is not set", param, ctx)
        return str(value)

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str | None:
        """Return the sentence that says which words there are."""
        listed = _LISTED_BY.get(self.name)
        return f"Give {_article(self.name)}, as `{listed}` shows" if listed else None

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """Return the names of this kind that begin so."""
        return LOOKUPS[self.name](ctx, incomplete)


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'ai' else 'a'} {kind}"


SANDBOX: Final = Word("sandbox")
IMAGE: Final = Word("image")
IMAGE_NAME: Final = Word("name of an image")
SNAPSHOT: Final = Word("snapshot")
SESSION: Final = Word("session")
IMAGE_OR_REFERENCE: Final = Word("image or reference")
CHECKPOINT: Final = Word("checkpoint")
ARTIFACT: Final = Word("artifact")
VOLUME: Final = Word("volume")
SOURCE: Final = Word("image source", may_be_empty=True)
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
LOCATION: Final = Word("location", may_be_empty=True)
SIGNAL: Final = Word("signal")
EVENT_TYPE: Final = Word("event type")
PROVIDER: Final = Word("provider")
METHOD: Final = Word("method")
VARIABLE: Final = Word("variable", may_be_empty=True)
INSIDE: Final = Word("directory inside", may_be_empty=True)
DIRECTORY: Final = Word("directory")
FILE: Final = Word("file", may_be_empty=True)
