"""The flow of *crafty*, from an image to the end of its sandbox, with each of the originals' providers."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon, daemon_in
from tests.support.expect import refused, until
from tests.support.kubernetes.images import TOOLS

from sandkeep.compat import crafty
from sandkeep.compat.crafty import Provider

ATTACH = "import sys; from sandkeep.compat import crafty; crafty.attach_to_process(*sys.argv[1:])"
SERVER = "while ! [ -e go ]; do echo waiting; sleep 0.1; done; echo went; exec sleep 1000"


@contextmanager
def daemon_for(provider: Provider, places: str, request: pytest.FixtureRequest) -> Iterator[tuple[RunningDaemon, str]]:
    """A daemon with that provider, and the base of a Dockerfile for it."""
    base = ""
    settings: dict[str, str] = {}
    if provider is Provider.DOCKER:
        engine: Any = request.getfixturevalue("dockerd")
        base = engine.tools()
        settings = {"DOCKER_HOST": engine.host, "SANDBOX_DOCKER_NETWORK": "none"}
    if provider is Provider.MODAL:
        base = TOOLS
        settings = request.getfixturevalue("modal").environment
    with daemon_in(places, **settings) as daemon:
        daemon.start()
        yield daemon, base


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(Provider.LOCAL, marks=[pytest.mark.needs("bwrap"), pytest.mark.needs("tmux")]),
        pytest.param(Provider.DOCKER, marks=pytest.mark.needs("docker")),
        pytest.param(Provider.MODAL, marks=[pytest.mark.needs("root"), pytest.mark.needs("modal")]),
    ],
    ids=lambda provider: provider.value,
)
def provided(request: pytest.FixtureRequest, places: str) -> Iterator[tuple[Provider, RunningDaemon, str]]:
    with daemon_for(request.param, places, request) as (daemon, base):
        yield request.param, daemon, base


@pytest.fixture
def provider(
    provided: tuple[Provider, RunningDaemon, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Provider]:
    monkeypatch.setenv("SANDKEEP_SOCKET", provided[1].socket)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    yield provided[0]
    for sandbox_id in crafty.list_sandboxes():
        crafty.terminate_sandbox(sandbox_id)


@pytest.fixture
def project(provided: tuple[Provider, RunningDaemon, str], provider: Provider, tmp_path: Path) -> str:
    """A project's directory; but for local sandboxes, with a Dockerfile."""
    project = tmp_path / "project"
    (project / "venv").mkdir(parents=True)
    (project / "venv" / "tool").write_text("#!/bin/sh\necho the tool ran\n")
    (project / "venv" / "tool").chmod(0o755)
    (project / "main.txt").write_text("first\n")
    if provider is not Provider.LOCAL:
        lines = (f"FROM {provided[2]}", "COPY main.txt /workspace/", "COPY venv /workspace/venv", "WORKDIR /workspace")
        (project / "Dockerfile").write_text("\n".join(lines) + "\n")
    return str(project)


@contextmanager
def attached(name: str, sandbox_id: str) -> Iterator[tuple["subprocess.Popen[bytes]", bytearray]]:
    """A program that is attached to a process, and what it has printed."""
    command = [sys.executable, "-c", ATTACH, name, sandbox_id]
    printed = bytearray()
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=null, stdout=pipe, start_new_session=True) as program:
        assert program.stdout is not None
        out = program.stdout.fileno()

        def read() -> None:
            while data := os.read(out, 65536):
                printed.extend(data)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield program, printed
        finally:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)  # the command that it runs has the pipe, too
            reader.join()


def test_the_flow_from_an_image_to_the_end(provider: Provider, project: str) -> None:
    image_id = crafty.create_image(project, False, provider)
    assert image_id in crafty.list_images()
    assert crafty.create_image(project, False, provider) == image_id
    sandbox_id = crafty.create_sandbox(image_id, provider)
    assert crafty.list_sandboxes() == (sandbox_id,)
    executor = crafty.get_executor(sandbox_id)
    assert executor.is_alive()

    crafty.launch_background_process("server", sandbox_id, SERVER)
    refused("conflict", crafty.launch_background_process, "server", sandbox_id, "true")
    command = "venv/tool; cat main.txt; echo second >main.txt; printf '%s|' 'a  b' \"c;d\"; exit 3"
    for _ in range(2):  # the name is free again
        streamed = "".join(crafty.launch_and_stream_process("build", sandbox_id, command))
        assert streamed.startswith("the tool ran\n")
        assert streamed.endswith("\na  b|c;d|")
        assert crafty.get_process("build", sandbox_id).exit_code == 3
    assert executor.read_file("main.txt") == "second\n"
    assert Path(project, "main.txt").read_text() == "first\n"

    assert crafty.list_processes() == ("server",)
    [server] = crafty.list_processes_records()
    names = [record.name for record in crafty.list_processes_records(list_all=True)]
    assert names == ["server", "build", "build"]
    assert crafty.get_process(server.process_id).tmux_session_name == "server"

    with attached("server", sandbox_id) as (program, printed):
        until(lambda: b"waiting" in printed, seen=lambda: bytes(printed))
        executor.write_file("go", "")
        until(lambda: b"went" in printed, seen=lambda: bytes(printed))
    assert not crafty.get_process("server", sandbox_id).is_terminated
    with attached("server", sandbox_id) as (program, printed):
        until(lambda: b"went" in printed, seen=lambda: bytes(printed))
        crafty.kill_process("server", sandbox_id)
        until(lambda: program.poll() is not None)
    assert crafty.list_processes() == ()
    assert crafty.get_process("server", sandbox_id).exit_code == 137

    crafty.launch_background_process("server", sandbox_id, "exec sleep 1000")
    crafty.terminate_sandbox(sandbox_id)
    assert crafty.list_sandboxes() == ()
    assert sandbox_id in crafty.list_sandboxes(list_all=True)
    assert crafty.get_sandbox(sandbox_id).is_closed
    assert crafty.get_process("server", sandbox_id).is_terminated
    assert not executor.is_alive()


def test_records_have_what_the_provider_knows_them_by(
    provider: Provider, project: str, request: pytest.FixtureRequest
) -> None:
    image_id = crafty.create_image(project, False, provider)
    image = crafty.get_image(image_id)
    sandbox_id = crafty.create_sandbox(image_id, provider)
    sandbox = crafty.get_sandbox(sandbox_id)
    assert (image.provider, sandbox.provider, sandbox.image_id) == (provider, provider, image_id)
    if provider is Provider.LOCAL:
        assert isinstance(image, crafty.LocalImageRecord)
        assert (image.image_path / "main.txt").read_text() == "first\n"
        assert isinstance(sandbox, crafty.LocalSandboxRecord)
        assert sandbox.sandbox_path == Path(os.path.expanduser("~/.crafty/local_sandboxes"), sandbox_id)
        assert (sandbox.sandbox_path / "main.txt").read_text() == "first\n"
    if provider is Provider.DOCKER:
        container = request.getfixturevalue("dockerd").container_of(sandbox_id)
        assert isinstance(image, crafty.DockerImageRecord)
        assert (image.docker_image_id, image.docker_image_tag) == (container["Image"], f"sandkeep:{image_id}")
        assert isinstance(sandbox, crafty.DockerSandboxRecord)
        assert (sandbox.container_id, f"/{sandbox.container_name}") == (container["Id"], container["Name"])
    if provider is Provider.MODAL:
        assert isinstance(image, crafty.ModalImageRecord)
        assert isinstance(sandbox, crafty.ModalSandboxRecord)
        there = {each["id"]: each for each in request.getfixturevalue("modal").sandboxes() if not each["ended"]}
        assert image.modal_image_id is not None
        assert there[sandbox.modal_sandbox_id or ""]["tags"]["sandkeep-sandbox"] == sandbox_id
