"""Commands and files in a real container, over a real exec stream."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.rpc.compat.agent_sandbox.conftest import pod_spec
from tests.support.kubernetes.cluster import Cluster as Double

from sandkeep.compat.agent_sandbox import execution
from sandkeep.compat.agent_sandbox.cluster import Cluster
from sandkeep.compat.agent_sandbox.execution import Container, ExecutionResult
from sandkeep.errors import CallerError, ProviderError
from sandkeep.kubernetes.objects import Object

pytestmark = pytest.mark.needs("bwrap", "busybox")


@pytest.fixture
def container(cluster: Cluster, start_pod: Callable[..., Object]) -> Container:
    start_pod("pod")
    return Container(cluster, "pod", None)


def test_output_and_exit_codes(container: Container) -> None:
    assert container.run("echo out; echo err >&2; exit 3", 60) == ExecutionResult("out\n", "err\n", 3)
    assert container.run("true", 60) == ExecutionResult("", "", 0)
    assert container.run("printf '\\377'; kill -9 $$", 60) == ExecutionResult("\ufffd", "", 137)


def test_a_command_is_one_text_for_the_shell(container: Container) -> None:
    text = 'x=\'a b\'; echo "$x" \'$y\' \\; "*" && echo "second\nline"'
    assert container.run(text, 60).stdout == "a b $y ; *\nsecond\nline\n"


def run_in_vain(container: Container, command: str, *seconds: float) -> ExecutionResult:
    """Run a command that does not end in that time; for the next time if it had not begun."""
    for limit in seconds:
        done = container.run(command, limit)
        if done.stdout:
            break
    return done


def test_a_command_that_takes_too_long_is_killed(container: Container) -> None:
    late = run_in_vain(container, "echo begun; echo $$ >/tmp/pid; exec sleep 1000", 1, 30)
    assert (late.stdout, late.exit_code) == ("begun\n", 124)
    assert container.run("kill -0 $(cat /tmp/pid)", 60).exit_code != 0


def test_what_cannot_be_killed_inside_is_given_up(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "_GRACE_S", 2.0)
    monkeypatch.setattr(execution, "_RUN", 'exec /bin/sh -c "$2"')
    late = run_in_vain(container, "echo begun; exec sleep 1000", 0.5, 30)
    assert late == ExecutionResult("begun\n", "", 124)


def test_large_output_is_whole(container: Container) -> None:
    done = container.run("seq 300000; seq 300000 >&2", 60)
    expected = "".join(f"{number}\n" for number in range(1, 300001))
    assert (done.stdout == expected, done.stderr == expected, done.exit_code) == (True, True, 0)


def test_output_without_end_is_refused(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "MAX_OUTPUT_BYTES", 1 << 20)
    with pytest.raises(CallerError, match="more than 1 MiB came out"):
        container.run("yes", 60)


@pytest.mark.parametrize("size", [0, 1, 32768, 32769, 3 << 20])
def test_a_file_comes_back_as_it_was_written(container: Container, size: int) -> None:
    content = os.urandom(size)
    container.write("/tmp/a/b c/-file", content, 60)
    assert container.read("/tmp/a/b c/-file", 60) == content


def test_relative_paths_and_odd_names(container: Container) -> None:
    for path in ("tmp/plain", "tmp/$(echo)", "tmp/a'b\"c\nd"):
        container.write(path, b"content", 60)
        assert container.read(f"/{path}", 60) == b"content"
    container.write("/tmp/plain", b"less", 60)
    assert container.read("tmp/plain", 60) == b"less"


def test_files_that_cannot_be_had_are_errors(container: Container) -> None:
    with pytest.raises(CallerError, match=r"'/none' cannot be read: .*[Nn]o such file") as missing:
        container.read("/none", 60)
    assert missing.value.code == "not_found"
    with pytest.raises(CallerError, match=r"'/dev' cannot be written: .*directory"):
        container.write("/dev", b"x", 60)
    with pytest.raises(CallerError, match=r"cannot be written: .*directory"):
        container.write("/bin/busybox/x", bytes(3 << 20), 60)
    for path in ("", "a\0b"):
        with pytest.raises(CallerError, match="is not a path"):
            container.read(path, 60)


def test_a_pod_that_is_not_there_is_an_error(container: Container, cluster: Cluster) -> None:
    with pytest.raises(CallerError, match="a command in pod 'none': pods \"none\" not found") as missing:
        Container(cluster, "none", None).run("true", 60)
    assert missing.value.code == "not_found"


def test_a_container_may_be_named(cluster: Cluster, start_pod: Callable[..., Object]) -> None:
    spec = pod_spec()
    spec["containers"].append({**spec["containers"][0], "name": "other", "env": [{"name": "WHO", "value": "other"}]})
    start_pod("two", spec)
    assert Container(cluster, "two", "other").run("echo $WHO", 60).stdout == "other\n"


def test_a_connection_that_breaks_is_an_error(container: Container, cluster: Cluster, double: Double) -> None:
    """It is cut once the command runs."""
    with ThreadPoolExecutor() as pool:
        broken = pool.submit(container.run, "touch /tmp/began; sleep 1000", 60)
        assert container.run("until [ -e /tmp/began ]; do sleep 0.1; done", 60).exit_code == 0
        double.faults(cut_exec={"namespace": cluster.namespace, "pod": "pod"})
        with pytest.raises(ProviderError, match=r"the connection to 'pod' broke|ended without an exit code"):
            broken.result()
