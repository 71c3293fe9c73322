"""`process.cancel`: launches that were given up, before, while and after they begin."""

import threading
from typing import Any

import pytest
from tests.support.expect import refused, until
from tests.support.patience import patient

pytestmark = pytest.mark.needs("bwrap")


def launches(client: Any, box: str) -> int:
    events = client.follow_events(sandbox_id=box, type="process.launch_requested", follow=False)
    return len(list(events))


def test_a_launch_that_was_cancelled_before_never_begins(client: Any, box: str) -> None:
    """The cancellation overtakes the launch, on another connection. It is one owner's, and of one command."""
    assert client.process.cancel("cmd_early").process_id is None
    for call in (client.sandbox.exec, client.process.launch):
        error = refused("conflict", call, box, "true", command_id="cmd_early")
        assert "cancelled by its caller" in error.message
    assert launches(client, box) == 0
    assert client.sandbox.exec(box, "true", command_id="cmd_other").exit_code == 0


def test_the_process_gets_int_and_then_kill(client: Any, box: str) -> None:
    answers: list[Any] = []
    script = "trap 'echo int' INT; echo up; while :; do sleep 0.05; done"
    thread = threading.Thread(
        target=lambda: answers.append(client.sandbox.exec(box, script, command_id="cmd_stubborn"))
    )
    thread.start()
    [running] = until(lambda: client.process.list(sandbox_id=box).processes)
    until(lambda: client.process.read(box, running.process_id).stdout == b"up\n")
    assert client.process.cancel("cmd_stubborn").process_id == running.process_id
    thread.join(patient(120))
    [result] = answers
    assert (result.stdout, result.exit_code) == (b"up\nint\n", 137)
    signals = [
        event.data["signal"] for event in client.follow_events(sandbox_id=box, type="process.signalled", follow=False)
    ]
    assert signals == ["INT", "KILL"]


def test_the_command_of_a_process_that_has_ended_is_left_as_it_is(client: Any, box: str) -> None:
    result = client.sandbox.exec(box, "exit 3", command_id="cmd_over")
    for given in ({}, {"command_id": "cmd_cancel"}, {"command_id": "cmd_cancel"}):
        assert client.process.cancel("cmd_over", **given).process_id == result.process_id
    assert client.process.get(box, result.process_id).exit_code == 3
    assert not list(client.follow_events(sandbox_id=box, type="process.signalled", follow=False))


def test_a_command_that_started_no_process_is_none(client: Any, box: str) -> None:
    client.sandbox.write_file(box, path="file", data=b"x", command_id="cmd_file")
    assert client.process.cancel("cmd_file").process_id is None
    assert client.sandbox.read_file(box, path="file").data == b"x"


def test_a_signal_is_no_launch_to_cancel(client: Any, box: str) -> None:
    """Its command belongs to whoever gave it, and the process may be another's by now."""
    process = client.process.launch(box, "sleep 1000", name="p")
    client.process.signal(box, "p", "CONT", command_id="cmd_signal")
    assert client.process.cancel("cmd_signal").process_id is None
    events = client.follow_events(sandbox_id=box, type="process.signalled", follow=False)
    assert [event.data["signal"] for event in events] == ["CONT"]
    assert client.process.get(box, process.process_id).status == "running"
