"""Shared sandboxes with each combination of their options: given up, and attached again with all that they had."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from tests.support.expect import refused, until
from tests.support.sharing import ID, Cluster, metadata, of_directory

pytestmark = pytest.mark.needs("bwrap", "root")

OPTIONS = ("enable_checkpoint", "enable_checkpoint_at_idle", "enable_handoff")
COMBINATIONS = [
    {name for name, is_on in zip(OPTIONS, each, strict=True) if is_on} for each in itertools.product((0, 1), repeat=3)
]
SOON = ({"enable_checkpoint"}, set(), set(OPTIONS))
PROVIDERS = {"local": "bwrap", "gvisor": "runsc", "docker": "docker"}
"""The providers, and what they need."""


def named(options: set[str]) -> str:
    return "+".join(sorted(options)) or "none"


def case(provider: str, options: set[str]) -> Any:
    """A parameter. Docker differs from local sandboxes in how one is saved, and not in when."""
    marks = [pytest.mark.needs(PROVIDERS[provider])]
    if options not in (SOON if provider != "docker" else SOON[-1:]):
        marks.append(pytest.mark.soak)
    return pytest.param(provider, options, id=f"{provider}-{named(options)}", marks=marks)


@pytest.fixture(scope="module")
def group(request: Any, module_daemons: Any, tmp_path_factory: Any) -> Any:
    root = tmp_path_factory.mktemp("shared")
    (root / "source").mkdir(mode=0o755)
    (root / "source/file").write_text("from the image\n")
    settings, source = of_directory(root), str(root / "source")
    if request.param == "docker":  # another daemon gets the image by its reference
        engine = request.getfixturevalue("dockerd")
        settings["DOCKER_HOST"] = engine.host
        files = "mkdir -p /workspace && echo from the image >/workspace/file && chown -R 1234:1234 /workspace"
        source = engine.derived("test/shared:1", f"FROM {engine.guest()}\nUSER 0\nRUN {files}\nUSER 1234:1234\n")
    made = Cluster(module_daemons, 2, settings, source, request.param)
    made.start()
    return made


@pytest.mark.parametrize(
    ("group", "options"),
    [case(provider, options) for provider in PROVIDERS for options in COMBINATIONS],
    indirect=["group"],
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


@pytest.mark.needs("docker")
@pytest.mark.parametrize("mode", ["none", "user"])
def test_a_container_that_cannot_be_saved_is_refused_before_anything_is_made(
    new_daemon: Any, dockerd: Any, tmp_path: Path, mode: str
) -> None:
    settings = {**of_directory(tmp_path), "DOCKER_HOST": dockerd.host, "SANDBOX_DOCKER_VOLUME_MODE": mode}
    alone = Cluster(new_daemon, 1, settings, dockerd.guest(), "docker")
    alone.start()
    there = len(dockerd.containers("sandkeep.log"))
    for options in COMBINATIONS:
        if options:
            refused("not_supported", alone.create, **{name: name in options for name in OPTIONS})
    assert len(dockerd.containers("sandkeep.log")) == there
    assert not Path(tmp_path, "metadata", "sandboxes").exists()
    with alone.daemons[0].connect() as client:
        assert client.sandbox.list(all=True).sandboxes == []
        until(lambda: client.lock.list().locks == [])
    alone.create(**dict.fromkeys(OPTIONS, False))
    with alone.daemons[0].connect() as client:
        client.sandbox.terminate(ID)
        until(lambda: client.lock.list().locks == [])
