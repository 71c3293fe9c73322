"""Snapshots and forks of sandboxes that have changed so much that it is copied while they run: all show one moment."""

from typing import Any

import pytest
from tests.support.expect import refused, until
from tests.support.snapshots import sh, tree
from tests.support.users import let_in

from sandkeepd.providers.local.precopy import COPIED_BYTES

pytestmark = pytest.mark.needs("bwrap")

ROUNDS = 3
LARGE = f"head -c {COPIED_BYTES + (1 << 20)} /dev/zero >a-large"
"""The first in the order in which files are copied, so that the others are copied later than they are catalogued."""

CHANGES = r"""
import itertools, mmap, os, random, shutil, time
step = 0
def put(path, number):
    with open(path, "r+b" if os.path.exists(path) else "wb") as file:
        for place in (0, 100_000, 200_000):
            file.seek(place)
            file.write(b"%08d" % number)
            file.flush()
mapped = os.open("mapped", os.O_RDWR | os.O_CREAT)
os.ftruncate(mapped, 8192)
memory = mmap.mmap(mapped, 8192)
for name in ("one", "two"):
    os.makedirs(f"{name}/deep")
    for number in range(5):
        with open(f"{name}/deep/{number}", "w") as file:
            file.write(name)
for generation in itertools.count():
    memory[:8] = memory[4096:4104] = b"%08d" % generation
    for number in range(8):
        put(f"file{number}", generation)
    put("new", generation)
    os.rename("new", "renamed")
    shutil.rmtree("image", ignore_errors=True)
    os.makedirs("image")
    put("image/young", generation)
    if os.path.lexists("link"):
        os.unlink("link")
    os.link("file0", "link")
    if os.path.isdir("kind"):
        os.rmdir("kind")
    elif os.path.lexists("kind"):
        os.unlink("kind")
    [lambda: os.mkdir("kind"), lambda: os.symlink("file0", "kind"), lambda: os.mkfifo("kind"),
     lambda: put("kind", 0)][generation % 4]()
    for turn in range(random.choice((0, 2))):
        os.rename("one", "aside")
        os.rename("two", "one")
        os.rename("aside", "two")
        time.sleep(random.uniform(0, 0.03))
    if not generation:
        open("begun", "w").close()
    time.sleep(random.choice((0, 0.08, 0.15)))
"""

CHECK = r"""
import os
found = []
def take(path):
    with open(path, "rb") as file:
        for place in (0, 100_000, 200_000):
            file.seek(place)
            found.append((path, file.read(8)))
with open("mapped", "rb") as file:
    content = file.read()
found += [("mapped", content[:8]), ("mapped", content[4096:4104])]
for number in range(8):
    take(f"file{number}")
take("renamed")
if os.path.isdir("image"):
    assert set(os.listdir("image")) <= {"young"}, os.listdir("image")
if os.path.exists("image/young") and os.path.getsize("image/young") > 200_000:
    take("image/young")
numbers = [int(value) for _, value in found]
assert numbers == sorted(numbers, reverse=True) and numbers[0] - numbers[-1] <= 1, found
if os.path.exists("link"):
    assert os.path.samefile("link", "file0") and os.stat("link").st_nlink == 2
places = [name for name in ("one", "two", "aside") if os.path.isdir(name)]
assert len(places) == 2, places
for name in places:
    [content] = {open(f"{name}/deep/{number}").read() for number in range(5)}
print("consistent")
"""


@pytest.fixture(scope="module")
def image(client: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    source = tmp_path_factory.mktemp("source")
    let_in(source)
    (source / "image").mkdir()
    (source / "image" / "old").write_text("old\n")
    (source / "gone").write_text("gone\n")
    return str(client.image.create(str(source)).image_id)


def require_consistent(client: Any, box: str) -> None:
    ran = client.sandbox.exec(box, ["python3", "-c", CHECK])
    assert ran.stdout == b"consistent\n", ran.stderr.decode()
    client.sandbox.terminate(box)


@pytest.mark.parametrize("way", ["full", "increment", "fork"])
def test_all_of_a_copy_is_of_one_moment(client: Any, image: str, way: str) -> None:
    box = client.sandbox.create(image).sandbox_id
    sh(client, box, LARGE)
    client.process.launch(box, ["python3", "-c", CHANGES], name="changes")
    until(lambda: sh(client, box, "test -e begun && echo begun || true"))
    for _ in range(ROUNDS):
        if way == "fork":
            made = client.sandbox.fork(box).sandboxes[0].sandbox_id
        else:
            if way == "increment":
                sh(client, box, LARGE)
            snapshot = client.snapshot.create(box, incremental=way == "increment")
            made = client.snapshot.restore(snapshot.snapshot_id).sandbox_id
        require_consistent(client, made)
    client.sandbox.terminate(box)


MUCH = (
    f"{LARGE}; rm gone; rm -r image; mkdir image; echo young >image/young; ln image/young hard; ln -s nowhere soft; "
    "mkfifo fifo; mkdir -p deep/er; chmod 500 deep; truncate -s 64M holes; echo end >>holes; touch -d @1 old deep"
)
CLOSED = f"{MUCH}; mkdir -m 0 closed; echo s >secret; chmod 0 secret"
"""Beside all of that what a user's daemon cannot open, and programs in a namespace of their own can."""


@pytest.mark.parametrize("script", [MUCH, CLOSED], ids=["open", "closed"])
@pytest.mark.parametrize("way", ["full", "increment", "fork"])
def test_a_copy_has_all_that_was_changed(client: Any, image: str, way: str, script: str) -> None:
    box = client.sandbox.create(image).sandbox_id
    sh(client, box, script)
    listing = "find . -mindepth 1 -printf '%P %y %m %n %s %l %T@\\n' | sort"
    before = tree(client, box), sh(client, box, listing)
    if way == "fork":
        made = client.sandbox.fork(box).sandboxes[0].sandbox_id
    else:
        snapshot = client.snapshot.create(box, incremental=way == "increment")
        made = client.snapshot.restore(snapshot.snapshot_id).sandbox_id
    assert tree(client, made) == before[0]
    assert sh(client, made, f"{listing}; test $(stat -c %b holes) -lt 1000") == before[1]
    for each in (box, made):
        client.sandbox.terminate(each)


def test_a_copy_has_of_the_files_beneath_what_is_wanted(client: Any, image: str) -> None:
    box = client.sandbox.create(image).sandbox_id
    sh(client, box, f"{LARGE}; rm gone; mkdir new; echo 1 >new/one; echo 2 >new/two; echo 3 >image/three")
    for include, exclude, expected in (
        (["image", "new/one"], [], "./image/old ./image/three ./new/one"),
        ([], ["a-large", "image/old", "new/two"], "./image/three ./new/one"),
        (["image/old"], [], "./image/old"),
    ):
        snapshot = client.snapshot.create(box, include=include, exclude=exclude)
        made = client.snapshot.restore(snapshot.snapshot_id).sandbox_id
        assert sh(client, made, "echo $(find . -type f | sort)") == expected + "\n"
        client.sandbox.terminate(made)
    for gone in ("gone", "image/gone", "nowhere"):
        refused("not_found", client.snapshot.create, box, include=["image", gone])
    sh(client, box, "rm -r image; mkdir image")
    refused("not_found", client.snapshot.create, box, include=["image/old"])
    client.sandbox.terminate(box)
