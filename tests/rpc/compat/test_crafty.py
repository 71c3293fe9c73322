"""The call shapes of *crafty*: its own flow, word for word, over a real daemon."""

import inspect
import os
import sys
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from tests.support.expect import refused
from tests.support.screen import Screen

from sandkeep.compat import crafty
from sandkeep.compat.crafty import Provider
from sandkeep.errors import SandkeepError

pytestmark = pytest.mark.needs("bwrap")


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.fixture(autouse=True)
def daemon(shared_daemon: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("SANDKEEP_SOCKET", shared_daemon.socket)
    return shared_daemon


@pytest.fixture
def project(tmp_path: Path) -> str:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "tool").write_text("#!/bin/sh\necho the tool ran\n")
    (tmp_path / "venv" / "bin" / "tool").chmod(0o755)
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "main.txt").write_text("first\n")
    (tmp_path / ".dockerignore").write_text("venv\n")  # all is copied all the same
    return str(tmp_path)


@pytest.fixture
def sandbox_id(project: str) -> str:
    return crafty.create_sandbox(crafty.create_image(project, False, Provider.LOCAL), Provider.LOCAL)


SIGNATURES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "create_image": ({"file_path": str, "clean": bool, "provider": Provider, "return": str}, {}),
    "list_images": ({"return": tuple[str, ...]}, {}),
    "create_sandbox": ({"image_id": str, "provider": Provider, "ssh": bool | None, "return": str}, {"ssh": None}),
    "list_sandboxes": ({"list_all": bool, "return": tuple[str, ...]}, {"list_all": False}),
    "connect_to_sandbox": ({"sandbox_id": str, "return": type(None)}, {}),
    "terminate_sandbox": ({"sandbox_id": str, "return": type(None)}, {}),
    "launch_background_process": ({"name": str, "sandbox_id": str, "command": str, "return": type(None)}, {}),
    "launch_and_stream_process": (
        {"name": str, "sandbox_id": str, "command": str, "return": Generator[str, None, None]},
        {},
    ),
    "list_processes": ({"list_all": bool, "return": tuple[str, ...]}, {"list_all": False}),
    "attach_to_process": ({"name": str, "sandbox_id": str, "return": type(None)}, {}),
    "kill_process": ({"name": str, "sandbox_id": str, "return": type(None)}, {}),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_eleven_functions_have_their_names_parameters_and_order(name: str) -> None:
    hints, defaults = SIGNATURES[name]
    function = getattr(crafty, name)
    signature = inspect.signature(function)
    assert get_type_hints(function) == hints
    assert list(signature.parameters) == [parameter for parameter in hints if parameter != "return"]
    found = {
        parameter.name: parameter.default
        for parameter in signature.parameters.values()
        if parameter.default is not inspect.Parameter.empty
    }
    assert found == defaults


def test_the_flow_from_an_image_to_the_end(project: str) -> None:
    image_id = crafty.create_image(project, clean=False, provider=Provider.LOCAL)
    assert image_id in crafty.list_images()

    sandbox_id = crafty.create_sandbox(image_id, Provider.LOCAL)
    assert [box.sandbox_id for box in crafty.list_sandboxes_records() if box.image_id == image_id] == [sandbox_id]

    crafty.launch_background_process("server", sandbox_id, "echo serving; exec sleep 1000")
    said = "".join(crafty.launch_and_stream_process("build", sandbox_id, "venv/bin/tool; ls -1; exit 3"))
    assert said == "the tool ran\nmain.txt\nnode_modules\nvenv\n"

    running = [process for process in crafty.list_processes_records() if process.sandbox_id == sandbox_id]
    assert [(process.name, process.is_terminated) for process in running] == [("server", False)]
    everything = [
        process for process in crafty.list_processes_records(list_all=True) if process.sandbox_id == sandbox_id
    ]
    assert [(process.name, process.is_terminated, process.exit_code) for process in everything] == [
        ("server", False, None),
        ("build", True, 3),
    ]

    crafty.kill_process("server", sandbox_id)
    assert crafty.get_process("server", sandbox_id).is_terminated
    crafty.terminate_sandbox(sandbox_id)
    assert sandbox_id not in crafty.list_sandboxes()
    assert {box.sandbox_id: box.is_closed for box in crafty.list_sandboxes_records(list_all=True)}[sandbox_id]


def test_the_source_is_copied_and_never_changed(project: str, sandbox_id: str) -> None:
    assert list(crafty.launch_and_stream_process("change", sandbox_id, "echo second >main.txt")) == []
    assert crafty.get_executor(sandbox_id).read_file("main.txt") == "second\n"
    assert (Path(project) / "main.txt").read_text() == "first\n"


def test_the_same_content_is_the_same_image_unless_it_is_wanted_clean(project: str) -> None:
    first = crafty.create_image(project, False, Provider.LOCAL)
    assert crafty.create_image(project, False, Provider.LOCAL) == first
    fresh = crafty.create_image(project, True, Provider.LOCAL)
    assert fresh != first
    assert {first, fresh} <= set(crafty.list_images())


def test_what_is_listed_can_be_passed_back(project: str, sandbox_id: str) -> None:
    """Names of processes, too, and ids everywhere in their place."""
    crafty.launch_background_process("only-one", sandbox_id, "echo one; exec sleep 1000")
    for listed, records, get in (
        (crafty.list_images(), crafty.list_images_records(), crafty.get_image),
        (crafty.list_sandboxes(), crafty.list_sandboxes_records(), crafty.get_sandbox),
    ):
        assert [get(each) for each in listed] == list(records)
    assert list(crafty.list_processes()) == [record.name for record in crafty.list_processes_records()]
    assert "only-one" in crafty.list_processes()
    one = crafty.get_process("only-one")
    assert crafty.get_process(one.process_id) == crafty.get_process("only-one", sandbox_id) == one
    assert crafty.get_process(one.process_id, sandbox_id) == one
    other = crafty.create_sandbox(crafty.create_image(project, False, Provider.LOCAL), Provider.LOCAL)
    crafty.launch_background_process("only-one", other, "exec sleep 1000")
    assert "give its sandbox too" in refused("invalid", crafty.get_process, "only-one").message
    crafty.kill_process(one.process_id, sandbox_id)
    assert crafty.get_process("only-one", sandbox_id).is_terminated
    crafty.kill_process("only-one", other)
    refused("not_found", crafty.get_process, "another")


def test_a_local_sandbox_is_its_directory_in_the_home(project: str, home: Path) -> None:
    """The same files both ways."""
    image_id = crafty.create_image(project, False, Provider.LOCAL)
    image = crafty.get_image(image_id)
    assert isinstance(image, crafty.LocalImageRecord)
    assert (image.image_path / "main.txt").read_text() == "first\n"
    sandbox_id = crafty.create_sandbox(image_id, Provider.LOCAL)
    shown = home / ".crafty" / "local_sandboxes" / sandbox_id
    assert (shown / "main.txt").read_text() == "first\n"
    assert (shown / "venv" / "bin" / "tool").stat().st_mode & 0o777 == 0o755
    assert shown.parent.stat().st_mode & 0o777 == 0o700
    (shown / "main.txt").write_text("mine\n")
    (shown / "fresh").write_text("fresh\n")

    executor = crafty.get_executor(sandbox_id)
    assert executor.read_file("main.txt") == "mine\n"
    assert executor.read_file("fresh") == "fresh\n"
    assert executor.run_command("echo second >main.txt; rm -r venv fresh; ln -s /etc out").wait() == 0
    assert (shown / "main.txt").read_text() == "second\n"
    assert sorted(path.name for path in shown.iterdir()) == [".dockerignore", "main.txt", "node_modules", "out"]
    assert (Path(project) / "main.txt").read_text() == "first\n"
    record = crafty.get_sandbox(sandbox_id)
    assert isinstance(record, crafty.LocalSandboxRecord)
    assert (record.sandbox_path, record.tmux_session_name, record.is_closed) == (shown, "shell", False)

    crafty.terminate_sandbox(sandbox_id)
    assert list(shown.parent.iterdir()) == []
    assert crafty.get_sandbox(sandbox_id).is_closed
    assert Path("/etc/passwd").exists()


def test_directories_made_at_the_same_time_are_each_whole(sandbox_id: str, home: Path) -> None:
    with ThreadPoolExecutor() as pool:
        for record in pool.map(crafty.get_sandbox, [sandbox_id] * 8):
            assert isinstance(record, crafty.LocalSandboxRecord)
    parent = home / ".crafty" / "local_sandboxes"
    assert [each.name for each in parent.iterdir()] == [sandbox_id]
    shown = sorted(each.name for each in (parent / sandbox_id).iterdir())
    assert shown == [".dockerignore", "main.txt", "node_modules", "venv"]


@pytest.fixture
def other_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workspaces of root's daemon are out of reach for those who are not root."""
    monkeypatch.setattr(crafty.local_directories, "_reachable", lambda _: None)


@pytest.mark.usefixtures("other_user")
def test_a_user_of_roots_daemon_has_a_copy(sandbox_id: str, home: Path) -> None:
    shown = home / ".crafty" / "local_sandboxes" / sandbox_id
    crafty.get_sandbox(sandbox_id)
    assert not shown.is_symlink()
    (shown / "main.txt").write_text("mine\n")
    executor = crafty.get_executor(sandbox_id)
    assert executor.run_command("ln -s /etc out; mkdir -m 500 locked").wait() == 0
    crafty.get_sandbox(sandbox_id)
    assert (shown / "main.txt").read_text() == executor.read_file("main.txt") == "first\n"
    assert (shown / "out").readlink() == Path("/etc")
    crafty.terminate_sandbox(sandbox_id)
    assert list(shown.parent.iterdir()) == []


@pytest.mark.usefixtures("other_user")
def test_code_that_cannot_be_shown_is_a_warning(sandbox_id: str, home: Path) -> None:
    crafty.get_sandbox(sandbox_id)
    executor = crafty.get_executor(sandbox_id)
    assert executor.run_command("echo second >main.txt; mkdir locked; chmod 0 locked").wait() == 0
    with pytest.warns(UserWarning, match="does not show the sandbox's code as it is now"):
        crafty.get_sandbox(sandbox_id)
    parent = home / ".crafty" / "local_sandboxes"
    assert (parent / sandbox_id / "main.txt").read_text() == "first\n"
    assert [each.name for each in parent.iterdir()] == [sandbox_id]


def test_a_sandbox_needs_no_writable_home(project: str, home: Path) -> None:
    (home / ".crafty").write_text("a file")
    with pytest.warns(UserWarning, match="does not show"):
        made = crafty.create_sandbox(crafty.create_image(project, False, Provider.LOCAL), Provider.LOCAL)
    assert crafty.get_executor(made).read_file("main.txt") == "first\n"


def test_a_name_is_free_when_its_process_has_ended(sandbox_id: str) -> None:
    for number in range(3):
        assert "".join(crafty.launch_and_stream_process("tests", sandbox_id, f"echo {number}")) == f"{number}\n"
    every = crafty.list_processes_records(list_all=True)
    last = crafty.get_process("tests", sandbox_id)
    assert [record for record in every if record.sandbox_id == sandbox_id][-1] == last


@pytest.mark.needs("tmux")
def test_a_process_is_a_tmux_session_of_its_own(sandbox_id: str) -> None:
    names = '$(tmux display-message -p "#{session_name}") $(tmux list-sessions | wc -l)'
    said = "".join(crafty.launch_and_stream_process("one.two", sandbox_id, f"echo {names}"))
    assert said == "one_two 1\n"
    assert crafty.get_process("one.two", sandbox_id).tmux_session_name == "one_two"


def test_names_are_unique_in_a_sandbox_and_not_between_them(project: str, sandbox_id: str) -> None:
    crafty.launch_background_process("same", sandbox_id, "exec sleep 1000")
    with pytest.raises(SandkeepError) as refused:
        crafty.launch_background_process("same", sandbox_id, "true")
    assert refused.value.code == "conflict"
    other = crafty.create_sandbox(crafty.create_image(project, False, Provider.LOCAL), Provider.LOCAL)
    crafty.launch_background_process("same", other, "true")


def test_commands_are_not_quoted_apart(sandbox_id: str) -> None:
    command = "printf '%s|' 'a  b' \"c;d\" '$HOME' 'é\nü' `echo e`; true"
    assert "".join(crafty.launch_and_stream_process("quotes", sandbox_id, command)) == "a  b|c;d|$HOME|é\nü|e|"


def test_a_stream_that_is_left_leaves_the_process_running(sandbox_id: str) -> None:
    stream = crafty.launch_and_stream_process("left", sandbox_id, "echo begun; exec sleep 1000")
    assert next(stream) == "begun\n"
    stream.close()
    assert not crafty.get_process("left", sandbox_id).is_terminated


def test_a_stream_is_whole_also_beyond_what_one_answer_holds(sandbox_id: str) -> None:
    said = "".join(crafty.launch_and_stream_process("much", sandbox_id, "seq 300000"))
    assert said == "".join(f"{number}\n" for number in range(1, 300001))


def test_a_provider_that_is_not_there_is_refused_with_words(project: str) -> None:
    with pytest.raises(SandkeepError) as refused:
        crafty.create_image(project, False, Provider.MODAL)
    assert (refused.value.code, "MODAL_TOKEN_ID" in refused.value.message) == ("not_configured", True)


@pytest.fixture
def screen(tmp_path_factory: pytest.TempPathFactory, daemon: Any) -> Iterator[Screen]:
    """A terminal in whose shell ``$PY`` is an interpreter that finds the daemon."""
    env = {**{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}, "PY": sys.executable}
    screen = Screen(tmp_path_factory.mktemp("screen"), {**env, "SANDKEEP_SOCKET": daemon.socket})
    yield screen
    screen.close()


@pytest.mark.needs("tmux")
def test_attaching_shows_the_process_and_leaving_lets_it_go_on(sandbox_id: str, screen: Screen) -> None:
    command = 'while read -r line; do echo "it heard $line"; done'
    crafty.launch_background_process("ear", sandbox_id, command)
    call = f"crafty.attach_to_process('ear', '{sandbox_id}')"
    screen.enter(f'clear; $PY -c "from sandkeep.compat import crafty; {call}"; echo left')
    screen.enter("hello")
    screen.until("it heard hello")
    screen.press("C-b", "d")
    screen.until("left")
    assert not crafty.get_process("ear", sandbox_id).is_terminated


@pytest.mark.needs("tmux")
def test_tmux_on_the_host_attaches_to_a_process(sandbox_id: str, screen: Screen, tmp_path: Path) -> None:
    """By a session of the host's own tmux, which runs the command of the guide: the sandbox's is not trusted."""
    crafty.launch_background_process("ear", sandbox_id, 'while read -r line; do echo "it heard $line"; done')
    tmux = f"env -u TMUX tmux -f /dev/null -S {tmp_path}/host"
    screen.enter(f"clear; {tmux} new-session -d -s ear $PY -m sandkeep.cli attach {sandbox_id} ear")
    try:
        screen.enter(f"{tmux} attach -t ear; echo left")
        screen.enter("hello")
        screen.until("it heard hello")
    finally:
        crafty.kill_process("ear", sandbox_id)
    screen.until("left")


@pytest.mark.needs("tmux")
def test_connecting_again_finds_the_same_shell(sandbox_id: str, screen: Screen) -> None:
    line = f"clear; $PY -c \"from sandkeep.compat import crafty; crafty.connect_to_sandbox('{sandbox_id}')\"; echo left"
    screen.enter(line)
    screen.until(lambda seen: "left" not in seen and seen.rstrip().endswith("$"))
    screen.enter("where=here")
    screen.press("C-b", "d")
    screen.until("left")
    screen.enter(line)
    screen.until("where=here")
    screen.enter('echo "still $where"')
    screen.until("still here")
    screen.enter("exit 4")
    screen.until("left")
    [shell] = [process for process in crafty.list_processes_records(list_all=True) if process.sandbox_id == sandbox_id]
    assert (shell.name, shell.is_terminated, shell.exit_code) == ("shell", True, 4)


class TestExecutor:
    """`Executor`, by a local sandbox's."""

    def test_a_command_runs_and_tells_how_it_ended(self, sandbox_id: str) -> None:
        command = crafty.get_executor(sandbox_id).run_command("echo out; echo err >&2; exit 5")
        assert command.wait() == 5
        assert (command.stdout, command.stderr) == ("out\n", "err\n")
        assert sorted("".join(command.stream()).split()) == ["err", "out"]

    def test_a_command_can_be_killed(self, sandbox_id: str) -> None:
        command = crafty.get_executor(sandbox_id).run_command("sleep 1000")
        command.kill()
        assert command.wait() == 137

    def test_it_is_alive_until_it_is_terminated(self, sandbox_id: str) -> None:
        executor = crafty.get_executor(sandbox_id)
        assert executor.is_alive()
        crafty.terminate_sandbox(sandbox_id)
        assert not executor.is_alive()

    def test_files_are_written_and_read_as_text(self, sandbox_id: str) -> None:
        executor = crafty.get_executor(sandbox_id)
        text = "ü\r\n" * 3_000_000
        executor.write_file("new/dir/file.txt", text[:1000])
        assert executor.read_file("/workspace/new/dir/file.txt") == text[:1000]
        executor.write_file("big.txt", text)
        assert executor.read_file("big.txt") == text

    def test_what_is_no_text_is_refused(self, sandbox_id: str) -> None:
        executor = crafty.get_executor(sandbox_id)
        assert executor.run_command("printf '\\377' >bytes").wait() == 0
        with pytest.raises(SandkeepError) as refused:
            executor.read_file("bytes")
        assert refused.value.code == "invalid"
