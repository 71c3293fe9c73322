"""The examples of all that was ever written to a log, which stay as they are for ever."""

from pathlib import Path
from typing import NamedTuple

CONTRACTS = Path(__file__).parents[1] / "contracts"


class Example(NamedTuple):
    """A file with an event as it was written: `TYPE.vVERSION.json`, and `TYPE.vVERSION.N.json` of those whose version
    got more fields later.
    """

    type: str
    version: int
    number: int
    path: Path

    @property
    def data(self) -> bytes:
        """The document."""
        return self.path.read_bytes()


def _example(path: Path) -> Example:
    type, _, numbers = path.name.removesuffix(".json").rpartition(".v")
    version, _, number = numbers.partition(".")
    return Example(type, int(version), int(number or 1), path)


EXAMPLES = sorted(map(_example, (CONTRACTS / "golden").glob("*.json")))
