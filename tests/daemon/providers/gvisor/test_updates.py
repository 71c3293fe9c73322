"""Limits of gVisor sandboxes are changed while they run, and while they are saved."""

from typing import Any

import pytest
from tests.support.expect import refused

pytestmark = [pytest.mark.needs("runsc"), pytest.mark.needs("root")]

MIB = 1 << 20


@pytest.fixture(scope="module")
def image(client: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(client.image.create(str(tmp_path_factory.mktemp("empty")), provider="gvisor").image_id)


def limits_of(client: Any, box: str) -> tuple[Any, Any]:
    found = client.sandbox.stats(sandbox_id=box).sandboxes[0]
    return found.memory_limit_bytes, found.cpus_limit


def test_limits_are_changed_while_it_runs_and_while_it_is_saved(shared_daemon: Any, client: Any, image: str) -> None:
    [found] = [one for one in client.daemon.capabilities().providers if one.provider == "gvisor"]
    for limit in ("limit_memory", "limit_cpus"):
        if not found.features[limit].works:
            pytest.skip(found.features[limit].why)
    box = client.sandbox.create(image, memory_bytes=512 * MIB).sandbox_id
    done = shared_daemon.cli("update", box, "--memory", "768M", "--cpus", "0.5")
    assert done.returncode == 0, done.stderr
    assert limits_of(client, box) == (768 * MIB, 0.5)
    for field, value in (("pids", 64), ("disk_bytes", 1 << 30)):
        assert "limit memory" in refused("not_supported", client.sandbox.update, box, **{field: value}).message
    client.sandbox.suspend(box)
    client.sandbox.update(box, memory_bytes=1024 * MIB)
    client.sandbox.resume(box)
    assert client.sandbox.exec(box, ["echo", "here"]).stdout == b"here\n"
    assert limits_of(client, box) == (1024 * MIB, 0.5)
    client.sandbox.terminate(box)
