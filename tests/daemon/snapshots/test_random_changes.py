"""Random changes in a sandbox, and whatever can be made of its files: all of it shows what the sandbox showed."""

import random
from typing import Any

import pytest
from tests.support.snapshots import exported, imported, sh, tree
from tests.support.users import let_in

pytestmark = pytest.mark.needs("bwrap")

NAMES = ("a", "b", "d/a", "d/b", "d/e/a", "d/e/c", "f/x", "f", "g/h/i")
STEPS = (
    "mkdir -p $(dirname {x}); echo {n} >{x}", "echo {n} >>{x}", "rm -rf {x}", "mkdir -p {x}", "ln -sfn {y} {x}",
    "ln {y} {x}", "mv {y} {x}", "mv -T {y} {x}", "chmod 700 {x}", "chmod 644 {x}", "touch -d @{n} {x}", "cp -a {y} {x}",
    "truncate -s {n} {x}", "rmdir {x}", "mv d away; mv away d", "rm -rf d; mkdir d",
    "rm -rf {x}; mkdir {x}",
)  # fmt: skip


@pytest.fixture(scope="module")
def image(client: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    source = tmp_path_factory.mktemp("source")
    let_in(source)
    for name in ("a", "d/a", "d/e/a", "d/e/b", "f/x", "f/y", "g/h/i", "g/h/j"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(f"{name} of the image\n")
    (source / "link").symlink_to("d")
    return str(client.image.create(str(source)).image_id)


def tell(client: Any, image: str, seed: int, rounds: int) -> None:
    """One sandbox, and those that are made of it; every so often another of them goes on."""
    chance = random.Random(seed)
    box = client.sandbox.create(image).sandbox_id
    boxes, snapshots = [box], []
    for _ in range(rounds):
        steps = [chance.choice(STEPS) for _ in range(chance.randint(1, 6))]
        x, y = chance.choice(NAMES), chance.choice(NAMES)
        done = [step.format(x=x, y=y, n=chance.randint(1, 99999)) for step in steps]
        sh(client, box, "\n".join([*(f"{{ {step}; }} 2>/dev/null" for step in done), "true"]))
        shown = tree(client, box)
        way = chance.choice(("full", "increment", "increment", "fork", "own", "export"))
        made = box
        if way == "fork":
            made = client.sandbox.fork(box).sandboxes[0].sandbox_id
        else:
            snapshot = taken(client, box, incremental=way != "full")
            snapshots.append(snapshot)
            if way == "own":
                client.sandbox.restore(box, snapshot_id=snapshot)
            elif way == "export":
                made = client.snapshot.restore(imported(client, exported(client, snapshot)).snapshot_id).sandbox_id
            else:
                made = client.snapshot.restore(snapshot).sandbox_id
        assert tree(client, made) == shown, (seed, way, done)
        if made != box:
            boxes.append(made)
        box = chance.choice((box, made))
        if snapshots and chance.random() < 0.2:
            client.snapshot.delete(snapshots.pop(chance.randrange(len(snapshots))))
    for one in boxes:
        client.sandbox.terminate(one)


def taken(client: Any, box: str, *, incremental: bool) -> str:
    """A snapshot; a full one when there is nothing that an increment could build on."""
    from sandkeep.errors import SetupError

    try:
        return str(client.snapshot.create(box, incremental=incremental).snapshot_id)
    except SetupError:
        return str(client.snapshot.create(box).snapshot_id)


@pytest.mark.parametrize("seed", [1, 2])
def test_random_changes(client: Any, image: str, seed: int) -> None:
    tell(client, image, seed, 6)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 130))
def test_many_random_changes(client: Any, image: str, seed: int) -> None:
    tell(client, image, seed, 25)
