"""The double of Modal's service serves the real SDK: apps, sandboxes of both versions, their names, tags and ends."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.support.expect import until
from tests.support.kubernetes.images import BARE, BUSYBOX, TOOLS
from tests.support.modal.boxes import Boxes, boxes_of, output
from tests.support.modal.service import Modal

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("busybox"), pytest.mark.needs("modal")]


def test_an_app_is_created_once(sdk: Any, app: Any) -> None:
    assert sdk.App.lookup(app.name).app_id == app.app_id
    with pytest.raises(sdk.exception.NotFoundError):
        sdk.App.lookup("nowhere")


def test_environments_are_apart(sdk: Any, app: Any) -> None:
    other = f"env-{uuid.uuid4().hex[:8]}"
    with pytest.raises(sdk.exception.NotFoundError, match=other):
        sdk.App.lookup(app.name, environment_name=other, create_if_missing=True)
    sdk.environments.create_environment(other)
    with pytest.raises(sdk.exception.NotFoundError):
        sdk.App.lookup(app.name, environment_name=other)
    found = sdk.App.lookup(app.name, environment_name=other, create_if_missing=True)
    assert found.app_id != app.app_id
    name = f"box-{uuid.uuid4().hex[:8]}"
    with boxes_of(sdk, found) as boxes:
        made = boxes.create(name=name)
        named = sdk.Sandbox.from_name(app.name, name, environment_name=other)
        assert named.object_id == made.object_id
        with pytest.raises(sdk.exception.NotFoundError):
            sdk.Sandbox.from_name(app.name, name)


def test_calls_that_are_not_served_say_so(boxes: Boxes) -> None:
    with pytest.raises(boxes.sdk.exception.UnimplementedError, match="SandboxCreateConnectToken"):
        boxes.create().create_connect_token()


def test_versions_have_ids_of_their_own(boxes: Boxes, version: str) -> None:
    made = boxes.create("sleep", "100000")
    assert (len(made.object_id) == len("sb-") + 22) == (version == "0")
    assert type(boxes.sdk.Sandbox.from_id(made.object_id)) is type(made)


def test_a_command_talks_over_its_own_stdin(boxes: Boxes) -> None:
    made = boxes.create("sh", "-c", "echo begin; cat; echo done >&2; exit 3")
    made.stdin.write("one\n")
    made.stdin.drain()
    assert next(iter(made.stdout)) == "begin\n"
    assert made.poll() is None
    made.stdin.write(b"two\n")
    made.stdin.write_eof()
    made.stdin.drain()
    made.wait()
    assert made.returncode == 3
    again = boxes.sdk.Sandbox.from_id(made.object_id)
    assert again.stdout.read() == "begin\none\ntwo\n"
    assert again.stderr.read() == "done\n"
    assert again.poll() == 3


def test_text_that_is_cut_within_a_character(boxes: Boxes) -> None:
    made = boxes.create("sh", "-c", r"printf 'a\303'; read line; printf '\244b'")
    made.stdin.write("\n")
    made.stdin.write_eof()
    made.stdin.drain()
    made.wait()
    assert made.stdout.read() == "aäb"


@pytest.mark.parametrize("reference", [BUSYBOX, BARE])
def test_without_a_command_it_waits(boxes: Boxes, reference: str) -> None:
    made = boxes.create(reference=reference)
    assert output(made.exec("cat", "/etc/passwd"))[2] == 0
    assert made.poll() is None


def test_exec_has_streams_and_an_exit_code(boxes: Boxes) -> None:
    made = boxes.create()
    assert output(made.exec("sh", "-c", "echo out; echo err >&2; exit 7")) == ("out\n", "err\n", 7)
    assert made.exec("sh", "-c", "kill -9 $$").wait() == 137
    process = made.exec("cat", text=False)
    process.stdin.write(bytes(range(256)) * 4096)
    process.stdin.write_eof()
    process.stdin.drain()
    assert process.stdout.read() == bytes(range(256)) * 4096
    assert process.wait() == process.poll() == 0


def test_exec_has_variables_and_a_directory(boxes: Boxes) -> None:
    secret = boxes.sdk.Secret.from_dict({"A": "secret", "B": "secret"})
    made = boxes.create(secrets=[secret], env={"C": "box"}, workdir="/tmp")
    script = "echo $A $B $C $D; pwd"
    assert output(made.exec("sh", "-c", script))[0] == "secret secret box\n/tmp\n"
    process = made.exec("sh", "-c", script, env={"B": "exec", "D": "exec"}, workdir="/etc")
    assert output(process)[0] == "secret exec box exec\n/etc\n"


def test_exec_of_a_program_that_is_missing(boxes: Boxes) -> None:
    made = boxes.create()
    with pytest.raises(boxes.sdk.exception.InvalidError, match="nothing-here"):
        made.exec("nothing-here")


def test_a_command_that_is_missing_ends_the_sandbox(boxes: Boxes) -> None:
    made = boxes.create("nothing-here")
    made.wait()
    assert made.returncode == 128


def test_exec_that_takes_too_long_is_killed(boxes: Boxes) -> None:
    made = boxes.create()
    process = made.exec("sleep", "100000", timeout=1)
    assert process.wait() in (-1, 137)
    until(lambda: output(made.exec("sh", "-c", "pidof sleep || echo none"))[0] == "none\n")


def test_a_terminal(boxes: Boxes) -> None:
    made = boxes.create()
    process = made.exec("sh", "-c", "tty; read line; echo got $line", pty=True)
    process.stdin.write("word\n")
    process.stdin.drain()
    assert process.wait() == 0
    lines = process.stdout.read().split("\r\n")
    assert any(line.startswith("/dev/pts/") for line in lines)
    assert "got word" in lines


def test_sandboxes_are_apart(boxes: Boxes) -> None:
    first, second = boxes.create(), boxes.create()
    assert output(first.exec("sh", "-c", "echo x > /root/f"))[2] == 0
    assert output(second.exec("cat", "/root/f"))[2] == 1
    assert output(first.exec("sh", "-c", "ls /proc | grep -c '^[0-9]'"))[0].strip() in ("3", "4")
    assert output(first.exec("sh", "-c", "ls /sys/class/net /proc/sys/net/ipv4/conf | grep -c eth"))[0] == "0\n"


def test_terminate_ends_everything(boxes: Boxes, modal: Modal) -> None:
    made = boxes.create("sleep", "100000")
    process = made.exec("sleep", "100000")
    modal.forget_calls()
    with ThreadPoolExecutor(1) as pool:
        code = pool.submit(process.wait)
        until(lambda: "TaskExecWait" in modal.calls()["open"])
        made.terminate()
        assert code.result() == 137
    made.wait(raise_on_termination=False)
    assert made.returncode == 137
    missing = boxes.sdk.exception.NotFoundError
    process.stdin.write("x")
    with pytest.raises(missing):
        process.stdin.drain()
    with pytest.raises(missing):
        boxes.sdk.Sandbox.from_id(made.object_id).exec("true")
    made.terminate()


def test_a_sandbox_ends_by_its_timeout(boxes: Boxes) -> None:
    made = boxes.create("sleep", "100000", timeout=1)
    with pytest.raises(boxes.sdk.exception.SandboxTimeoutError):
        made.wait()
    assert made.returncode == 124


def test_names_are_free_again_when_their_sandbox_has_ended(boxes: Boxes) -> None:
    name = f"box-{uuid.uuid4().hex[:8]}"
    made = boxes.create(name=name)
    with pytest.raises(boxes.sdk.exception.AlreadyExistsError):
        boxes.create(name=name)
    assert boxes.sdk.Sandbox.from_name(boxes.app.name, name).object_id == made.object_id
    made.terminate()
    made.wait(raise_on_termination=False)
    with pytest.raises(boxes.sdk.exception.NotFoundError):
        boxes.sdk.Sandbox.from_name(boxes.app.name, name)
    assert boxes.create(name=name).object_id != made.object_id


def test_lists_go_by_app_and_tags(boxes: Boxes, sdk: Any) -> None:
    mark = uuid.uuid4().hex[:8]
    made = [boxes.create(tags={"mark": mark, "number": str(number)}) for number in range(3)]

    def listed(**tags: str) -> set[str]:
        return {one.object_id for one in sdk.Sandbox.list(app_id=boxes.app.app_id, tags=tags)}

    assert listed(mark=mark) == {one.object_id for one in made}
    assert listed(mark=mark, number="1") == {made[1].object_id}
    made[1].set_tags({"mark": mark, "number": "x"})
    assert made[1].get_tags() == {"mark": mark, "number": "x"}
    assert listed(mark=mark, number="1") == set()
    made[0].terminate()
    made[0].wait(raise_on_termination=False)
    assert listed(mark=mark) == {made[1].object_id, made[2].object_id}
    other = sdk.App.lookup(f"app-{mark}", create_if_missing=True)
    assert list(sdk.Sandbox.list(app_id=other.app_id)) == []


def test_lists_of_many_come_in_pages(boxes: Boxes, sdk: Any) -> None:
    app = sdk.App.lookup(f"app-{uuid.uuid4().hex[:8]}", create_if_missing=True)
    boxes.app = app
    made = {boxes.create().object_id for _ in range(23)}
    assert {one.object_id for one in sdk.Sandbox.list(app_id=app.app_id)} == made


def test_files_go_through_the_tool(boxes: Boxes) -> None:
    files = boxes.create(reference=BARE).filesystem
    files.write_text("text", "/deep/er/file")
    assert files.read_text("/deep/er/file") == "text"
    files.write_bytes(bytes(1 << 20), "/deep/zeros")
    assert files.read_bytes("/deep/zeros") == bytes(1 << 20)
    assert [(entry.name, entry.type.value) for entry in files.list_files("/deep")] == [
        ("er", "directory"),
        ("zeros", "file"),
    ]
    assert files.stat("/deep/zeros").size == 1 << 20
    files.make_directory("/deep/new")
    files.remove("/deep/new")
    files.remove("/deep", recursive=True)
    errors = boxes.sdk.exception
    with pytest.raises(errors.SandboxFilesystemNotFoundError):
        files.read_text("/deep/er/file")
    with pytest.raises(errors.SandboxFilesystemNotADirectoryError):
        files.write_text("", "/etc/passwd/below")
    with pytest.raises(errors.SandboxFilesystemIsADirectoryError):
        files.read_text("/etc")
    with pytest.raises(errors.SandboxFilesystemDirectoryNotEmptyError):
        files.remove("/etc")


def test_a_snapshot_is_an_image(boxes: Boxes) -> None:
    made = boxes.create(reference=TOOLS)
    assert output(made.exec("sh", "-c", "echo new > /root/new; rm /etc/passwd; rm -r /home; mkdir /home"))[2] == 0
    image = made.snapshot_filesystem()
    made.terminate()
    again = boxes.create(image=boxes.sdk.Image.from_id(image.object_id))
    assert output(again.exec("sh", "-c", "cat /root/new; ls /etc/passwd; ls -A /home"))[:1] == ("new\n",)
    assert output(again.exec("ls", "/etc/passwd"))[2] != 0
    assert output(again.exec("sh", "-c", "echo second >> /root/new"))[2] == 0
    later = again.snapshot_filesystem()
    assert output(boxes.create(image=later).exec("cat", "/root/new"))[0] == "new\nsecond\n"
    boxes.sdk.experimental.image_delete(image.object_id)
    assert output(again.exec("true"))[2] == 0
    with pytest.raises(boxes.sdk.exception.NotFoundError):
        boxes.create(image=boxes.sdk.Image.from_id(image.object_id))
    assert output(boxes.create(image=later).exec("cat", "/root/new"))[2] == 0


def test_a_snapshot_of_the_old_kind(sdk: Any, app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODAL_SANDBOX_V2", "0")
    monkeypatch.setenv("MODAL_USE_LEGACY_FILESYSTEM_SNAPSHOT", "1")
    with boxes_of(sdk, app) as boxes:
        made = boxes.create()
        assert output(made.exec("sh", "-c", "echo old > /old"))[2] == 0
        assert output(boxes.create(image=made.snapshot_filesystem()).exec("cat", "/old"))[0] == "old\n"


def test_what_is_asked_for_is_recorded(boxes: Boxes, modal: Modal, version: str) -> None:
    gpu = {"gpu": "T4:2"} if version == "0" else {}
    made = boxes.create(cpu=0.5, memory=(128, 256), region="eu", block_network=True, timeout=77, idle_timeout=66, **gpu)
    (found,) = [one for one in modal.sandboxes() if one["id"] == made.object_id]
    definition = found["definition"]
    assert definition["resources"]["milli_cpu"] == 500
    assert (definition["resources"]["memory_mb"], definition["resources"]["memory_mb_max"]) == (128, 256)
    assert definition["scheduler_placement"]["regions"] == ["eu"]
    assert definition["network_access"]["network_access_type"] == "BLOCKED"
    assert (definition["timeout_secs"], definition["idle_timeout_secs"]) == (77, 66)
    if gpu:
        assert definition["resources"]["gpu_config"]["gpu_type"] == "T4"


def test_calls_are_recorded(boxes: Boxes, modal: Modal, version: str) -> None:
    made = boxes.create()
    assert output(made.exec("true"))[2] == 0
    modal.forget_calls()
    assert output(made.exec("true"))[2] == 0
    assert modal.calls()["counts"] == {"TaskExecStart": 1, "TaskExecStdioRead": 2, "TaskExecWait": 1}
    until(lambda: modal.calls()["open"] == [])
