"""Five agents fix a project whose tests fail, each in a branch; what passes its tests is merged, and committed.

    python examples/tournament/tournament.py [DIRECTORY]

DIRECTORY is a copy of the project beside this file, and gets the fixes; without it the program makes a copy of its own.
The agents are scripts: a patch, and the tests that it should make pass.
"""

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

import sandkeep.blocking
from sandkeep.blocking import Client
from sandkeep.model import Conflict, Merged, Resolution

PROJECT = Path(__file__).parent / "project"
IGNORED = [".git", "__pycache__"]


class Agent(Struct, frozen=True):
    """An agent: its edits, each a file, an old text and a new one, and the tests of what it fixes."""

    name: str
    tests: str
    edits: list[tuple[str, str, str]]


AGENTS = [
    Agent("ada", "test_cart.TestTotal", [("cart.py", "sum(price for _, _, price", "sum(n * price for _, n, price")]),
    Agent("bob", "test_cart.TestDiscount", [("cart.py", "cents * percent", "-(-cents * percent // 100)")]),
    Agent("cyd", "test_shipping", [("shipping.py", "cents > 5000", "cents >= 5000")]),
    Agent(
        "dan",
        "test_receipt",
        [
            ("receipt.py", "{cents / 100}", "{cents // 100}.{cents % 100:02}"),
            ("shipping.py", "0 if cents > 5000 else 490", "490 * (cents <= 5000)"),  # tidied in passing
        ],
    ),
    Agent("eve", "test_cart.TestDiscount", [("cart.py", "cents - cents * percent", "cents * percent // 100")]),
]


def main(target: str) -> None:
    """Run the tournament. Whatever it makes is removed, also when something fails."""
    with sandkeep.blocking.connect(client="tournament") as client, branches(client, target) as names:
        passed, report = tests_pass(client, names[0])
        print(f"before: {report}")
        require(not passed, "the project has nothing to fix")
        winners = [name for agent, name in zip(AGENTS, names, strict=True) if compete(client, agent, name)]
        merged = merge(client, winners)
        assert merged.sandbox is not None
        with ending(client, [merged.sandbox.sandbox_id]):
            finish(client, merged.sandbox.sandbox_id, target)


@contextmanager
def branches(client: Client, target: str) -> Iterator[list[str]]:
    """Make a branch of the directory for each agent, under its name; end them in the end."""
    names = [agent.name for agent in AGENTS]
    known = [image.image_id for image in client.image.list().images]
    made = client.branch.create(source=target, ignore=IGNORED, names=names, count=len(names))
    try:
        with ending(client, names):
            yield names
    finally:
        if made.source_id not in known:  # an image of the same content is used again
            client.image.remove(made.source_id)


@contextmanager
def ending(client: Client, names: Sequence[str]) -> Iterator[None]:
    """End branches in the end."""
    try:
        yield
    finally:
        for name in names:
            client.branch.remove(name)


def compete(client: Client, agent: Agent, branch: str) -> bool:
    """Let an agent make its edits in its branch, and run its own tests. Return True if they pass."""
    for file, old, new in agent.edits:
        text = client.sandbox.read_file(branch, path=file).data.decode()
        require(old in text, f"{agent.name} does not find its line in {file}")
        client.sandbox.write_file(branch, path=file, data=text.replace(old, new).encode())
    changed = [change.path for change in client.branch.diff(branch).files]
    passed, report = tests_pass(client, branch, agent.tests)
    print(f"{agent.name} changes {', '.join(changed)}: {report}")
    return passed


def tests_pass(client: Client, branch: str, *tests: str) -> tuple[bool, str]:
    """Run tests in a branch, all of them by default. Return True if they pass, and the last line of the report."""
    command = ["python3", "-B", "-m", "unittest", *tests]  # -B: no caches, which would be changes, too
    done = client.sandbox.exec(branch, command, timeout_s=60)
    return done.exit_code == 0, done.stderr.decode().strip().rpartition("\n")[2]


def merge(client: Client, winners: list[str]) -> Merged:
    """Merge the branches over their common base. Where two differ, take the version of the first."""
    print(f"merging {', '.join(winners)}")
    merged: Merged = client.branch.merge(winners, name="winner")
    if merged.sandbox is None:
        for conflict in merged.conflicts:
            show(conflict)
        decisions = [Resolution(path=each.path, take=choice(each)) for each in merged.conflicts]
        merged = client.branch.resolve(merged.merge.merge_id, decisions)
    return merged


def show(conflict: Conflict) -> None:
    """Print the lines that differ."""
    print(f"conflict in {conflict.path}, resolved for {choice(conflict)}:")
    for hunk in conflict.hunks:
        for branch, lines in {"base": hunk.base, **hunk.versions}.items():
            print(f"  {branch:<4} {' '.join(line.strip() for line in lines)}")


def choice(conflict: Conflict) -> str:
    """Return the first of the branches that differ, by name."""
    return min(side.branch for side in conflict.sides if side.branch != "base")


def finish(client: Client, branch: str, target: str) -> None:
    """Verify the merged branch with all tests, commit it to the host, and print where each change came from."""
    passed, report = tests_pass(client, branch)
    print(f"after: {report}")
    require(passed, "the merged branch fails: nothing is committed")
    commit = client.branch.commit(branch, target)
    print(f"committed: {commit.added} added, {commit.changed} changed, {commit.deleted} deleted")
    for origin in client.branch.blame(commit_id=commit.commit_id).paths:
        print(f"  {origin.path:<12} {' '.join(origin.branches):<8} {origin.how}")


def require(holds: bool, otherwise: str) -> None:
    """End with 1 unless it holds."""
    if not holds:
        raise SystemExit(otherwise)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(str(Path(sys.argv[1]).absolute()))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(str(shutil.copytree(PROJECT, f"{made}/project", ignore=shutil.ignore_patterns(*IGNORED))))
