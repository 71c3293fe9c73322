"""Errors as users meet them: each names the option or word that was typed, and the way out."""

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.rpc.cli.test_usage import cli as without_daemon
from tests.rpc.cli.test_usage import parse
from tests.support.patience import patient

from sandkeep.cli.root import HABITS, HABITS_EVERYWHERE, WITHOUT_COMMAND, sandkeep

pytestmark = pytest.mark.needs("bwrap")


@pytest.fixture(scope="module")
def web(shared_daemon: Any, image: str) -> Iterator[str]:
    with shared_daemon.connect() as client:
        made = client.sandbox.create(image, name="web1").sandbox_id
        client.process.launch("web1", ["sleep", "1000"], name="worker")
        yield made
        client.sandbox.terminate(made)


def refused(daemon: Any, line: str, **options: Any) -> str:
    """The message of a command that is refused, in one sentence."""
    done = daemon.cli(*shlex.split(line), **options)
    assert done.returncode in (1, 2, 125), done
    assert done.stdout == b""
    said = done.stderr.decode()
    assert done.returncode == 2 or said.count("\n") == 1, said
    return " ".join(said.split())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("create IMG --memory 1K", "--memory 1K: must be at least 4.0 MB"),
        ("create IMG --disk 1K", "--disk 1K: must be at least 1.0 MB"),
        ("create IMG --pids 0", "--pids 0: must be at least 8"),
        ("create IMG --cpus 0", "--cpus 0: must be at least 0.01"),
        ("create IMG --name 'a b'", "--name 'a b': must be an id or name"),
        ("create IMG --idle-timeout -5", "--idle-timeout -5: must be more than 0 seconds"),
        ("create IMG --env 'A B=c'", "--env: each name must be a variable's name"),
        ("create IMG --volume 'a b:/d'", "--volume 'a b:/d': source must be an absolute path of the host"),
        ("exec web1 --timeout 0s -- true", "--timeout 0s: must be more than 0 seconds"),
        ("exec 'a b' -- true", "SANDBOX 'a b': must be an id or name"),
        ("rm 'a b'", "SANDBOX 'a b': must be an id or name"),
        ("image rm 'a b'", "IMAGE 'a b': must be"),
        ("image tag IMG 'a b'", "NAME 'a b': must be a name for an image"),
        ("update web1 --network none", "--network none: the network of a sandbox cannot be changed"),
        ("create IMG --writable-root", "--writable-root: a local sandbox sees the programs of the host"),
        ("wait web1 worker --timeout -1", "--timeout -1: must be more than 0 seconds"),
        ("exec web1 --timeout 9999999d -- true", "--timeout 9999999d: must be at most 365 days"),
        ("kill web1 worker --signal FOO", "--signal: 'FOO' is not a signal"),
        ("diff web1 other", "OTHER: there is no sandbox, snapshot or image 'other'"),
        ("restore web1 --at 999999", "--at 999999: there is no event 999999"),
        ("restore web1 --at 2999-01-01T00:00:00Z", "--at: '2999-01-01T00:00:00Z' is in the future"),
        ("session ensure ../x --image IMG", "SESSION ../x: must be an id or name"),
        ("branch blame .", "BRANCH|MERGE|COMMIT: must be an id or name"),
        ("branch commit web1 /nosuch", "DIRECTORY /nosuch: /nosuch is not a directory"),
        ("branch commit 'a b' .", "BRANCH 'a b': must be an id or name"),
        ("image create . --ignore '['", "--ignore: line 1: '[' is no pattern"),
        ("fork web1 --name 'a b'", "--name 'a b': must be an id or name"),
    ],
)
def test_an_option_is_called_as_it_was_typed(shared_daemon: Any, image: str, web: str, line: str, message: str) -> None:
    assert f"sandkeep: {message}" in refused(shared_daemon, line.replace("IMG", image))


def test_a_secret_is_not_repeated(shared_daemon: Any, image: str) -> None:
    said = refused(shared_daemon, f"create {image} --secret 'A B=s3cret'")
    assert "--secret: " in said
    assert "s3cret" not in said


def test_a_program_reads_the_same_message(shared_daemon: Any, image: str) -> None:
    done = shared_daemon.cli("create", image, "--memory", "1K", "--json")
    error = json.loads(done.stdout)["error"]
    assert (error["code"], error["data"]) == ("invalid", {"field": "memory_bytes"})
    assert error["message"].startswith("--memory 1K: ")


def test_a_volume_of_a_directory_here_is_an_absolute_path(shared_daemon: Any, image: str, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    for source in ("./x", "x/../x", "~/x"):
        said = refused(shared_daemon, f"create {image} --volume {source}:/d", cwd=tmp_path, env={"HOME": str(tmp_path)})
        assert ("source must be an absolute path" in said) is (source == "x/../x"), said  # that is no volume's name


@pytest.mark.parametrize("word", ["busybox", "nosuch", "busybox:mine", "./project", ".", "ghcr.io/team/app"])
def test_create_of_a_word_that_is_no_image_says_how_to_make_it(shared_daemon: Any, word: str) -> None:
    ways = f"(see `sandkeep image ls`, or make it with `sandkeep image create {word}`)"
    assert f"there is no image '{word}' {ways}" in refused(shared_daemon, f"create {word}")


def test_the_name_of_an_image_is_a_word_that_was_meant(shared_daemon: Any, image: str) -> None:
    assert shared_daemon.cli("image", "tag", image, "project:1").returncode == 0
    assert "did you mean 'project:1'?" in refused(shared_daemon, "create projct:1")
    assert shared_daemon.cli("image", "untag", "project:1").returncode == 0


@pytest.mark.parametrize(
    ("line", "kind"), [("exec IMG -- true", "an image"), ("create WEB", "a sandbox"), ("snapshot rm IMG", "an image")]
)
def test_the_id_of_something_else_is_called_so(shared_daemon: Any, image: str, web: str, line: str, kind: str) -> None:
    said = refused(shared_daemon, line.replace("IMG", image).replace("WEB", web))
    assert f"it is the id of {kind} [not_found]" in said


def test_a_mistyped_directory_does_not_end_as_an_error_of_a_registry(new_daemon: Any, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    daemon = new_daemon()
    daemon.start(DOCKER_HOST=f"unix://{tmp_path}/no-docker")  # no test asks a real registry
    said = refused(daemon, "image create projct", cwd=tmp_path)
    assert "there is no directory 'projct' here either: did you mean 'project'?" in said
    assert f"there is no directory {tmp_path}/projct" in refused(daemon, "image create projct/", cwd=tmp_path)


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("get wbe1", "web1"),
        ("history wbe1", "web1"),
        ("ps wbe1", "web1"),
        ("logs wbe1 worker", "web1"),
        ("snapshot create wbe1", "web1"),
        ("exec wbe1 -- true", "web1"),
        ("rm wbe1", "web1"),
        ("logs web1 wroker", "worker"),
        ("kill web1 worke", "worker"),
        ("wait web1 workers", "worker"),
    ],
)
def test_a_mistyped_name_gets_the_nearest_one(shared_daemon: Any, web: str, line: str, near: str) -> None:
    assert f"did you mean {near!r}?" in refused(shared_daemon, line)


def test_an_id_that_lost_its_end_gets_the_nearest_one(shared_daemon: Any, image: str, web: str) -> None:
    assert f"did you mean {image!r}?" in refused(shared_daemon, f"create x{image[:-3]}")
    assert "did you mean" not in refused(shared_daemon, "get nothing-like-it")


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("stop web1", "`sandkeep suspend SANDBOX` to freeze it, or `sandkeep rm SANDBOX`"),
        ("inspect web1", "`sandkeep get`"),
        ("build .", "`sandkeep image create PATH`"),
        ("pull busybox", "`sandkeep image create REF`"),
        ("image pull busybox", "`sandkeep image create REF`"),
        ("snapshot delete x", "`sandkeep snapshot rm`"),
        ("images", "`sandkeep image ls`"),
        ("snapshot web1 --name good", "`sandkeep snapshot create SANDBOX`"),
        ("rollback web1", "`sandkeep snapshot restore SNAPSHOT --over SANDBOX`"),
        ("upload x", "`sandkeep cp FILE SANDBOX:PATH`"),
    ],
)
def test_a_command_of_another_tool_leads_to_ours(line: str, ours: str) -> None:
    done = without_daemon(*line.split())
    assert done.returncode == 2
    assert f"Use {ours}." in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("create img -m 512M", "Use `--memory`."),
        ("create img -it", "`create` runs no program: use `sandkeep exec -it`"),
        ("exec web1 -d -- sleep 1", "Use `sandkeep run SANDBOX NAME --detach`."),
        ("exec web1 -u root -- id", "use `sandkeep create --user`"),
        ("kill web1 worker -9", "Use `--signal 9`."),
        ("ls --format json", "Use `--json`."),
        ("ls --status running", "Use `--filter status=running`"),
        ("snapshot export good -o x.tar", "Give the file as an argument"),
        ("store compact --older-than 1s", "'--older-than': '1s': give at least 24h"),
        ("rm -f web1", "'web1' is no KEY=VALUE: to force `rm`, leave out -f"),
        ("events -n 5", "Use `--since 10m`, or pipe to `tail`."),
        ("create --image img", "Give the image as an argument"),
        ("rename web1 web2", "A sandbox keeps the name that `sandkeep create --name`"),
        ("run -it python:3.12 bash", "put `--` before the command, as in: sandkeep run SANDBOX NAME -- COMMAND"),
        ("logs web1", "Missing argument 'NAME'. Give a process, as `sandkeep ps SANDBOX --all` shows"),
    ],
)
def test_an_option_of_another_tool_leads_to_ours(line: str, ours: str) -> None:
    done = without_daemon(*line.split())
    assert done.returncode == 2
    assert ours in " ".join(done.stderr.split())


def test_every_command_that_is_named_instead_exists() -> None:
    for group, habits in HABITS.items():
        for ours in habits.values():
            for line in ours.replace("--version", "status").split("` to freeze it, or `sandkeep "):
                before = [] if group == "sandkeep" or line.startswith("rm ") else [group]
                parse([*before, *line.split()])
    assert {*HABITS_EVERYWHERE.values()} <= {*sandkeep.table}
    assert not {*HABITS_EVERYWHERE, *HABITS["sandkeep"], *WITHOUT_COMMAND} & {*sandkeep.table}
    assert "Did you mean" not in without_daemon("push").stderr + without_daemon("auth").stderr


def test_options_of_other_tools_are_taken() -> None:
    """Directories are copied without -r, too."""
    for line in ("cp -r . box:there", "exec -w /tmp box -- pwd", "create img --workdir /tmp", "create img --id web"):
        parse(line.split())


def test_exec_says_that_its_process_outlives_the_daemon(new_daemon: Any, tmp_path: Path) -> None:
    daemon = new_daemon()
    daemon.start()
    with daemon.connect() as client:
        (tmp_path / "file").touch()
        box = client.sandbox.create(client.image.create(str(tmp_path)).image_id, name="web").sandbox_id
    command = [*daemon.command, "exec", "web", "--", "sh", "-c", "echo ready; exec sleep 1000"]
    env = {**daemon.env, "SANDKEEP_PATIENCE": "1"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == b"ready\n"
        daemon.kill()
        said = running.stderr.read().decode()
        assert running.wait(patient(60)) == 125
    daemon.start()
    with daemon.connect() as client:
        (process,) = client.process.list(box).processes
        assert process.status == "running"
        assert f"process {process.process_id} runs on without the daemon" in said
        assert f"`sandkeep attach web {process.process_id}`" in said
        client.sandbox.terminate(box)
