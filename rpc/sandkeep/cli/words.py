"""What the words of a command line are, so that a shell can complete them."""

from typing import Any, Final

import click


class Word(click.ParamType[str]):
    """Text of a kind that the shell can complete; how is in `completion.LOOKUPS`, which nobody else imports."""

    def __init__(self, kind: str) -> None:
        self.name = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """What there is of this kind that begins so."""
        from sandkeep.cli.completion import LOOKUPS

        return LOOKUPS[self.name](ctx, incomplete)


SANDBOX: Final = Word("sandbox")
IMAGE: Final = Word("image")
SNAPSHOT: Final = Word("snapshot")
CHECKPOINT: Final = Word("checkpoint")
SOURCE: Final = Word("image source")
REFERENCE: Final = Word("reference")
LOCK: Final = Word("lock")
PROCESS: Final = Word("process")
RUNNING: Final = Word("running process")
PLACE: Final = Word("place")
SIGNAL: Final = Word("signal")
EVENT_TYPE: Final = Word("event type")
PROVIDER: Final = Word("provider")
METHOD: Final = Word("method")
VARIABLE: Final = Word("variable")
INSIDE: Final = Word("directory inside")
DIRECTORY: Final = Word("directory")
FILE: Final = Word("file")
