"""Enemies inside: whatever one does, it hurts its own sandbox only, that can always be ended, and nothing is left.

All in one real daemon: a neighbour is served while each does its worst, and others wait for it, read from it and write
to it. See `tests.support.hostile` for the enemies, `tests.support.siege` for the rest; here all of them are in local
sandboxes, and in `test_hostile_elsewhere.py` in those of other providers, and as other users.
"""

import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.support.boxes import at_most
from tests.support.expect import until
from tests.support.hostile import ENEMIES, SMALL_SCRATCH, Burden, Enemy, python, traces_of
from tests.support.patience import patient
from tests.support.siege import MEMORY_BUDGET, Box, House, attack, follow, fought
from tests.support.soak import times

from sandkeepd.providers.common.inside import PATH

pytestmark = pytest.mark.needs("bwrap")

SETTINGS = SMALL_SCRATCH


@pytest.fixture(scope="module")
def house(shared_daemon: Any) -> Iterator[House]:
    with shared_daemon.connect() as client:
        made = House(shared_daemon, client)
        yield made
        client.sandbox.terminate(made.neighbour)


def can(enemy: Enemy) -> bool:
    """Whether sandboxes, which see the programs of the host, have what it takes."""
    wanted = (("python3", enemy.is_snake), ("tmux", enemy.tty))
    return all(shutil.which(program, path=PATH) for program, is_wanted in wanted if is_wanted)


@pytest.mark.parametrize("enemy", ENEMIES, ids=lambda enemy: enemy.name.replace(" ", "-"))
def test_an_enemy_hurts_itself_only(house: House, enemy: Enemy) -> None:
    if not can(enemy):
        pytest.skip("the programs that it takes are not here")
    attack(house, enemy)


def test_many_followers_of_one_that_writes_at_full_speed(house: House) -> None:
    enemy = next(enemy for enemy in ENEMIES if enemy.name == "output")
    with fought(house, enemy) as (_, dealings):
        for _ in range(6):
            dealings.begin(follow)
        with at_most(60):
            for _ in range(5):
                house.check_neighbour()


def test_enemies_outlive_the_daemon_and_are_ended_by_the_next(running_daemon: Any) -> None:
    """What they do to the files of answers, and to those of helpers, does not keep a new daemon from the others."""
    names = ("pipes", "ever others", "answers for ever", "answers with holes", "kills", "forks", "stops")
    with running_daemon.connect() as client:
        house = House(running_daemon, client)
        boxes = [house.let_loose(enemy) for enemy in ENEMIES if enemy.name in names and can(enemy)]
        for box in boxes:
            house.go(box.id)
        running_daemon.kill()
        running_daemon.start()
        with at_most(60):
            house.check_neighbour()
            house.end_all(boxes)
            house.check_neighbour()


# -- deep and slow -----------------------------------------------------------------------------------------------------

SOAK_S = times(60)
"""How long the enemies go on."""

THOUSANDS = times(1000)
"""How many thousands of files each of those makes that make many."""


@pytest.mark.soak
def test_all_enemies_at_once(running_daemon: Any) -> None:
    """One of each, for a while, with the daemon killed in between."""
    with running_daemon.connect() as client:
        house = House(running_daemon, client)
        boxes = [house.let_loose(enemy, cpus=0.1) for enemy in ENEMIES if can(enemy)]
        for box in boxes:
            house.go(box.id)
        for _ in range(2):
            burden = Burden(running_daemon.process.pid)
            ends = time.monotonic() + SOAK_S / 2
            while time.monotonic() < ends:
                house.check_neighbour()
            assert burden.bytes_more() < 4 * MEMORY_BUDGET
            running_daemon.kill()
            running_daemon.start()
        house.end_all(boxes)
        house.check_neighbour()


@pytest.mark.soak
def test_a_million_files(house: House) -> None:
    """Whoever ends others meanwhile does not wait for their removal."""
    script = """
busy()
for place in (P, "."):
    for n in range(THOUSANDS):
        os.makedirs(f"{place}/{n}")
        for m in range(1000): open(f"{place}/{n}/{m}", "w").close()
open(P + "/all", "w").close(); time.sleep(1000)""".replace("THOUSANDS", str(THOUSANDS // 2))
    boxes = [house.let_loose(python("million files", script), disk_bytes=None) for _ in range(5)]
    for box in boxes:
        house.go(box.id)
    for box in boxes:
        until(lambda box=box.id: os.path.exists(f"{house.daemon.state_dir}/sandboxes/{box}/out/p/all"), patient(1000))
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(house.end_all, boxes)
        made: list[Box] = []
        while not ending.done():
            box = house.client.sandbox.create(house.image).sandbox_id
            assert house.client.sandbox.exec(box, command="echo fine").stdout == b"fine\n"
            made.append(Box(box, traces_of(box, None)))
            house.check_neighbour()
        ending.result()
    house.end_all(made)
    assert len(made) > 10
