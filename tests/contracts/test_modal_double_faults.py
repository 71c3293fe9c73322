"""The double of Modal's service fails on request, and refuses whom it does not know; the SDK says so or recovers."""

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.support.expect import until
from tests.support.modal.boxes import Boxes, output
from tests.support.modal.service import Modal

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("busybox"), pytest.mark.needs("modal")]


@pytest.fixture
def boxes(boxes: Boxes, modal: Modal) -> Iterator[Boxes]:
    yield boxes
    modal.clear_faults()


# Faults


def test_a_call_fails(boxes: Boxes, modal: Modal) -> None:
    modal.fault("SandboxCreate(V2)?", status="RESOURCE_EXHAUSTED", message="no machine is free")
    with pytest.raises(boxes.sdk.exception.ResourceExhaustedError, match="no machine is free"):
        boxes.create()
    boxes.create()


def test_a_call_that_fails_for_a_moment_is_repeated_by_the_sdk(boxes: Boxes, modal: Modal) -> None:
    modal.fault("Sandbox(Wait|TagsGet)(V2)?", status="UNAVAILABLE", times=2)
    made = boxes.create(tags={"a": "b"})
    assert made.poll() is None
    assert made.get_tags() == {"a": "b"}


def test_a_service_that_wants_fewer_calls_says_when(boxes: Boxes, modal: Modal) -> None:
    made = boxes.create()
    modal.fault("TaskExecStart", status="RESOURCE_EXHAUSTED", retry_after=0.2)
    assert output(made.exec("echo", "later"))[0] == "later\n"
    assert modal.control("GET", "faults") == []


def test_a_lost_reply_starts_one_process(boxes: Boxes, modal: Modal) -> None:
    made = boxes.create()
    modal.fault("TaskExecStart", reset=True, after=True)
    assert output(made.exec("sh", "-c", "echo x >> /tmp/count; cat /tmp/count"))[0] == "x\n"
    modal.fault("TaskExecStart", drop=True, after=True)
    assert output(made.exec("sh", "-c", "echo x >> /tmp/count; cat /tmp/count"))[0] == "x\nx\n"


def test_a_lost_reply_to_input_writes_it_once(boxes: Boxes, modal: Modal) -> None:
    made = boxes.create()
    process = made.exec("cat")
    modal.fault("TaskExecStdinWrite", drop=True, after=True)
    process.stdin.write("once\n")
    process.stdin.drain()
    process.stdin.write_eof()
    process.stdin.drain()
    assert output(process) == ("once\n", "", 0)


def test_a_lost_reply_to_create_leaves_a_sandbox(boxes: Boxes, modal: Modal) -> None:
    name = f"box-{uuid.uuid4().hex[:8]}"
    modal.fault("SandboxCreate(V2)?", status="INTERNAL", message="lost", after=True, times=None)
    with pytest.raises(boxes.sdk.exception.Error):
        boxes.create(name=name)
    modal.clear_faults()
    found = boxes.sdk.Sandbox.from_name(boxes.app.name, name)
    boxes.made.append(found)
    assert found.poll() is None


@pytest.mark.parametrize("how", ["reset", "drop"])
def test_a_stream_that_is_cut_goes_on_where_it_was(boxes: Boxes, modal: Modal, how: str) -> None:
    made = boxes.create()
    modal.fault("TaskExecStdioRead", after_bytes=1, **{how: True})
    process = made.exec("sh", "-c", "seq 100000; echo end", text=False)
    data, _, code = output(process)
    assert (code, data) == (0, b"".join(b"%d\n" % number for number in range(1, 100001)) + b"end\n")
    assert modal.control("GET", "faults") == []


def test_streams_are_cut_while_they_wait(boxes: Boxes, modal: Modal) -> None:
    made = boxes.create()
    process = made.exec("sh", "-c", "echo begin; read line; echo got $line")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(process.stdout.read)
        for drop in (False, True):
            until(lambda drop=drop: modal.cut("TaskExecStdioRead", drop=drop))
        process.stdin.write("word\n")
        process.stdin.drain()
        assert reading.result() == "begin\ngot word\n"
    assert process.wait() == 0


def test_the_output_of_the_command_is_cut(boxes: Boxes, modal: Modal) -> None:
    made = boxes.create("sh", "-c", "echo begin; read line; echo got $line")
    reading = iter(made.stdout)
    assert next(reading) == "begin\n"
    until(lambda: modal.cut("SandboxStdioReadV2|SandboxGetLogs"))
    made.stdin.write("word\n")
    made.stdin.drain()
    assert "".join(reading) == "got word\n"


def test_a_call_hangs(boxes: Boxes, modal: Modal) -> None:
    made = boxes.create()
    modal.fault("TaskExecPoll", hang=True)
    process = made.exec("sleep", "100000", timeout=1)
    assert process.poll() == -1
    until(lambda: "TaskExecPoll" not in modal.calls()["open"])


def test_an_image_fails_to_build_for_a_moment(boxes: Boxes, modal: Modal) -> None:
    modal.fault("ImageJoinStreaming", reset=True)
    image = boxes.sdk.Image.from_registry("busybox").run_commands(f"echo {uuid.uuid4()} > /x")
    assert boxes.create(image=image).poll() is None


# Tokens


def test_a_token_that_is_wrong(modal: Modal, sdk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for token in ({"id": "ak-unknown", "secret": "as-unknown"}, {**modal.token, "secret": "as-unknown"}):
        client = sdk.Client.from_credentials(token["id"], token["secret"])
        with pytest.raises(sdk.exception.AuthError):
            sdk.App.lookup("any", create_if_missing=True, client=client)
        client.close()


def test_a_token_that_is_revoked(boxes: Boxes, modal: Modal, sdk: Any) -> None:
    token = modal.issue_token()
    client = sdk.Client.from_credentials(token["id"], token["secret"])
    found = sdk.Sandbox.from_id(boxes.create().object_id, client=client)
    assert found.poll() is None
    modal.revoke_token(token["id"])
    with pytest.raises(sdk.exception.AuthError):
        found.poll()
    client.close()


def test_another_workspace_sees_nothing(boxes: Boxes, modal: Modal, sdk: Any) -> None:
    made = boxes.create(tags={"a": "b"})
    token = modal.issue_token(f"workspace-{uuid.uuid4().hex[:8]}")
    client = sdk.Client.from_credentials(token["id"], token["secret"])
    missing = sdk.exception.NotFoundError
    with pytest.raises(missing):
        sdk.App.lookup(boxes.app.name, client=client)
    with pytest.raises(missing):
        sdk.Sandbox.from_id(made.object_id, client=client)
    assert list(sdk.Sandbox.list(app_id=boxes.app.app_id, client=client)) == []
    own = sdk.App.lookup(boxes.app.name, create_if_missing=True, client=client)
    assert own.app_id != boxes.app.app_id
    client.close()


def test_tokens_of_the_service_are_renewed(boxes: Boxes, modal: Modal) -> None:
    client = boxes.sdk.Client.from_credentials(modal.token["id"], modal.token["secret"])
    modal.script(lifetime_s=1)
    try:
        made = boxes.create(client=client)
        assert output(made.exec("echo", "one"))[0] == "one\n"
        ends = time.time() + 1
        until(lambda: time.time() > ends)
    finally:
        modal.script(lifetime_s=3600)
    assert made.poll() is None
    assert output(made.exec("echo", "two"))[0] == "two\n"
