"""Memory limits of a user's daemon that has no control groups: of each process's own data, which is approximate."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import daemon_in
from tests.support.boxes import Box
from tests.support.expect import refused
from tests.support.users import NOBODY, as_client, command_as

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("bwrap")]

MIB = 1 << 20

NODE = [shutil.which("node") or "", "-e", "const pages = Buffer.alloc(64 << 20, 1); console.log(pages.length)"]
JAVA = [os.path.realpath(shutil.which("java") or "/nowhere"), "-Xmx128m", "-version"]


@pytest.fixture(scope="module")
def box(places: str) -> Iterator[Box]:
    with daemon_in(places) as daemon:
        source = Path(daemon.root, "source")
        source.mkdir()
        for path in (daemon.root, source):
            os.chown(path, NOBODY, NOBODY)
        daemon.program = command_as(NOBODY, daemon.program)
        daemon.start()
        image = as_client(daemon, NOBODY, lambda client: client.image.create(str(source)).image_id)
        with daemon.connect() as client:
            made = Box(daemon, client, client.sandbox.create(image, memory_bytes=512 * MIB).sandbox_id)
            yield made
            client.sandbox.terminate(made.id)


def test_that_it_is_approximate_is_said(box: Box) -> None:
    isolation = box.client.sandbox.get(box.id).isolation
    assert isolation.limits["memory"] == "approximate"
    assert any(note.startswith("memory is approximate: ") for note in isolation.notes)


@pytest.mark.parametrize("program", [NODE, JAVA], ids=["node", "java"])
def test_programs_that_reserve_much_more_than_they_use_run(box: Box, program: list[str]) -> None:
    if box.client.sandbox.exec(box.id, ["test", "-x", program[0]]).exit_code:
        pytest.skip(f"the sandbox has no {program[0] or 'such program'}")
    done = box.client.sandbox.exec(box.id, program)
    assert done.exit_code == 0, done


def test_a_process_that_takes_more_is_refused_it(box: Box) -> None:
    done = box.client.sandbox.exec(box.id, ["python3", "-c", "bytearray(600 << 20)"])
    assert done.exit_code == 1
    assert b"MemoryError" in done.stderr
    box.sh('python3 -c "bytearray(300 << 20)"')


def test_a_disk_limit_is_refused(box: Box) -> None:
    sandbox = box.client.sandbox.get(box.id)
    error = refused("not_supported", box.client.sandbox.create, sandbox.image_id, disk_bytes=64 * MIB)
    assert "only root's daemon" in error.message
    assert sandbox.isolation.limits["disk"] == "approximate"
