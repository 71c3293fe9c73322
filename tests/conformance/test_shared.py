"""Shared sandboxes with each combination of their options: given up, and attached again with all that they had."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from tests.support.expect import until
from tests.support.sharing import ID, Cluster, metadata, of_directory

pytestmark = pytest.mark.needs("bwrap", "root")

OPTIONS = ("enable_checkpoint", "enable_checkpoint_at_idle", "enable_handoff")
COMBINATIONS = [
    {name for name, is_on in zip(OPTIONS, each, strict=True) if is_on} for each in itertools.product((0, 1), repeat=3)
]
SOON = ({"enable_checkpoint"}, set(), set(OPTIONS))


def named(options: set[str]) -> str:
    return "+".join(sorted(options)) or "none"


@pytest.fixture(scope="module", params=["local", pytest.param("gvisor", marks=pytest.mark.needs("runsc"))])
def group(request: Any, module_daemons: Any, tmp_path_factory: Any) -> Any:
    root = tmp_path_factory.mktemp("shared")
    (root / "source").mkdir(mode=0o755)
    (root / "source/file").write_text("from the image\n")
    made = Cluster(module_daemons, 2, of_directory(root), root / "source", request.param)
    made.start()
    return made


@pytest.mark.parametrize(
    "options",
    [pytest.param(each, id=named(each), marks=[] if each in SOON else pytest.mark.soak) for each in COMBINATIONS],
)
def test_it_is_given_up_and_attached_again_where_it_was_and_elsewhere(group: Cluster, options: set[str]) -> None:
    group.create(**{name: name in options for name in OPTIONS})
    where = group.daemons[0].env["SANDBOX_METADATA_MOUNT_PATH"]
    told = metadata(where)
    assert told["enable_sandbox_checkpoint"] is True
    assert told["enable_sandbox_handoff"] is ("enable_handoff" in options)
    assert told["enable_idle_timeout_auto_checkpoint"] is ("enable_checkpoint_at_idle" in options)
    group.sh(0, "echo mine >mine; echo memory >/tmp/memory")
    with group.daemons[0].connect() as client:
        client.process.launch(ID, "sleep 1000", name="sleeper")
        assert client.sandbox.detach(ID).status == "stopped"
    for at in (0, 1):
        group.attach(at, timeout_s=0)
        assert group.sh(at, "cat file mine") == "from the image\nmine\n"
        if group.provider == "gvisor":
            assert group.sh(at, "cat /tmp/memory") == "memory\n"
            with group.daemons[at].connect() as client:
                assert [one.name for one in client.process.list(ID).processes] == ["sleeper"]
        with group.daemons[at].connect() as client:
            client.sandbox.detach(ID)
    assert Path(where, "sandboxes", ID, "metadata.json").exists()
    group.attach(0)
    with group.daemons[0].connect() as client:
        client.sandbox.terminate(ID)
        until(lambda: client.lock.list().locks == [])  # only then does the shared document tell of the end
