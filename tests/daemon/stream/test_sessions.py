"""Sessions by the stream server: a copy brings one back, and ends with the sandbox that it began in."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from tests.support.expect import until_async
from tests.support.patience import patient
from tests.support.streams import House, everything, house_in, message, websocket

from sandkeep.protocol import frames

pytestmark = pytest.mark.needs("bwrap", "root")


@pytest.fixture(scope="module")
def house(places: str) -> Iterator[House]:
    with house_in(places) as house, house.daemon.connect() as client:
        client.session.ensure(id="s", image=client.sandbox.get(house.sandbox_id).image_id)
        yield house


def status_of(house: House) -> str:
    with house.daemon.connect() as client:
        return str(client.session.get("s").status)


def close(house: House) -> None:
    with house.daemon.connect() as client:
        client.session.close("s")


@pytest.mark.parametrize("kind", ["file", "tree"])
async def test_a_copy_brings_a_session_back(house: House, tmp_path: Path, kind: str) -> None:
    streams = house.streams()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a").write_text("kept")
    close(house)
    if kind == "file":
        await streams.put_file("s", io.BytesIO(b"kept"), "file")
    else:
        await streams.put_tree("s", tmp_path / "tree", "tree")
    assert status_of(house) == "ready"
    close(house)
    assert status_of(house) == "terminated"
    if kind == "file":
        await streams.get_file("s", "file", tmp_path / "copy")
        assert (tmp_path / "copy").read_text() == "kept"
    else:
        await streams.get_tree("s", "tree", tmp_path / "copies")
        assert (tmp_path / "copies" / "a").read_text() == "kept"
    assert status_of(house) == "ready"


@pytest.mark.parametrize("op", ["get", "put"])
async def test_a_copy_ends_with_its_sandbox(house: House, op: str) -> None:
    """It does not go on in another sandbox, and brings none about."""
    with house.daemon.connect() as client:
        client.sandbox.exec("s", "head -c 30M /dev/zero >large")
    async with websocket(house.plain(), frames.target("files", "s", path="large", op=op)) as connection:
        if op == "get":
            await message(connection)
        else:
            await connection.send_message(bytes(1 << 19))
            with house.daemon.connect() as client:
                await until_async(lambda: b".sandkeep-" in client.sandbox.exec("s", "ls -A").stdout)
        close(house)
        with trio.fail_after(patient(60)):
            got, code = await everything(connection)
    assert got[-1]["error"]["code"] == "not_ready"
    assert code == 1008
    assert status_of(house) == "terminated"
