"""Compare the daemon of this checkout with that of another, call by call in turns: `python -m benches.turns OTHER`.

OTHER is a checkout of an earlier commit with a `.venv` of its own. Both daemons run at once, each on a state directory
of its own, with one Docker engine; they get each call one after the other, and who is first changes. So both have the
same machine at every moment, which runs of whole benches (`benches.compare`) have not. A row is worse by the ratio of
the medians.
"""

import os
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benches import fair
from benches.daemon import daemon, seconds
from benches.engines import engine
from benches.table import Row, show

HERE = Path(__file__).parent.parent
TURNS = 60
MOST = 1.1
FILES = 1000


class Side:
    """One daemon, and on each provider a sandbox that is there all the time."""

    def __init__(self, client: Any, root: str, base: str) -> None:
        self.client = client
        self.images = {}
        for provider in ("local", "docker", "gvisor"):
            options = {"base": base} if provider == "docker" else {}
            self.images[provider] = client.image.create(f"{root}/source", provider=provider, **options).image_id
        self.boxes = {name: client.sandbox.create(image).sandbox_id for name, image in self.images.items()}
        self._made: list[str] = []

    def exec(self, provider: str) -> None:
        assert self.client.sandbox.exec(self.boxes[provider], ["true"]).exit_code == 0

    def create(self, provider: str) -> None:
        self._made.append(self.client.sandbox.create(self.images[provider]).sandbox_id)

    def fork(self, provider: str) -> None:
        self._made.append(self.client.sandbox.fork(self.boxes[provider]).sandboxes[0].sandbox_id)

    def snapshot(self, provider: str) -> None:
        self.client.snapshot.delete(self.client.snapshot.create(self.boxes[provider]).snapshot_id)

    def file(self, provider: str) -> None:
        self.client.sandbox.write_file(self.boxes[provider], path="file", data=b"x" * 1000)
        assert len(self.client.sandbox.read_file(self.boxes[provider], path="file").data) == 1000

    def terminal(self, provider: str) -> None:
        self.client.process.launch(self.boxes[provider], command=["true"], tty=True)

    def clear(self) -> None:
        while self._made:
            self.client.sandbox.terminate(self._made.pop())


CALLS: list[tuple[str, str, Callable[[Side, str], None], int]] = [
    ("sandbox.exec true", "local", Side.exec, TURNS),
    ("sandbox.create", "local", Side.create, TURNS),
    ("sandbox.fork", "local", Side.fork, TURNS),
    ("a full snapshot of 1,000 files", "local", Side.snapshot, 20),
    ("write_file and read_file", "local", Side.file, TURNS),
    ("process.launch with a terminal", "local", Side.terminal, 20),
    ("sandbox.exec true", "docker", Side.exec, TURNS),
    ("sandbox.create", "docker", Side.create, 20),
    ("sandbox.fork", "docker", Side.fork, 15),
    ("write_file and read_file", "docker", Side.file, TURNS),
    ("sandbox.exec true", "gvisor", Side.exec, TURNS),
    ("sandbox.create", "gvisor", Side.create, 20),
    ("write_file and read_file", "gvisor", Side.file, 20),
]
"""Each call, where, and how often. What it makes is terminated in between, which is a row of its own after a create."""


@contextmanager
def side(checkout: Path, base: str) -> Iterator[Side]:
    """The daemon of a checkout, for the length of a block."""
    with daemon(python=f"{checkout}/.venv/bin/python") as (client, root):
        os.mkdir(f"{root}/source")
        for number in range(FILES):
            Path(f"{root}/source/{number}").write_text("x" * 1000)
        yield Side(client, root, base)


def rows(there: Side, here: Side) -> Iterator[Row]:
    """A row for each call, and for the end of what was made, as soon as it is measured."""
    for case, provider, work, turns in CALLS:
        took: dict[Side, list[float]] = {there: [], here: []}
        ended: dict[Side, list[float]] = {there: [], here: []}
        for turn in range(turns + 3):
            for one in (there, here) if turn % 2 else (here, there):
                took[one].append(seconds(partial(work, one, provider)))
            for one in (there, here) if turn % 2 else (here, there):
                ended[one].append(seconds(one.clear))
        yield row(f"{case}, {provider}", took[there], took[here])
        if work is Side.create:
            yield row(f"sandbox.terminate, {provider}", ended[there], ended[here])


def row(case: str, before: list[float], after: list[float]) -> Row:
    was, now = (statistics.median(times[3:]) * 1000 for times in (before, after))
    return Row(case, f"{now:.2f} ms", f"{was:.2f} ms", now / was, f"<= {MOST}", now / was <= MOST)


@fair.conditions()
def main(other: Path) -> int:
    found = []
    with engine() as docker, ExitStack() as stack:
        there, here = (stack.enter_context(side(checkout, docker.guest())) for checkout in (other, HERE))
        for measured in rows(there, here):
            found.append(measured)
            print(measured.case, measured.ratio, file=sys.stderr, flush=True)
    show(found)
    return 0 if all(measured.ok for measured in found) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
