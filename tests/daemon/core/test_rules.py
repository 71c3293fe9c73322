"""The decisions: pure, so these tests are plain calls."""

from typing import Any, get_args

import msgspec
import pytest
from tests.store.views.test_views import Log, running_sandbox
from tests.support.expect import refused

from sandkeep import events
from sandkeep.events import EVENTS, MAX_EVENT_BYTES
from sandkeep.ids import PREFIXES, check_new_name
from sandkeep.lifecycle import SANDBOX
from sandkeep.model import SandboxSpec, SandboxStatus, SessionSpec
from sandkeep.protocol.methods import METHODS, ProcessLaunch, SandboxCreate, SandboxExec
from sandkeep_store.eventlog.codec import CODEC
from sandkeep_store.views.sessions import SessionState
from sandkeep_store.views.state import State
from sandkeepd.core import rules
from sandkeepd.sandboxes.processes import parse_signal


def world(*, sandboxes: int = 1) -> State:
    log = Log()
    log.add("img_1", events.ImageCreateRequested(owner="uid:7", provider="fake", kind="directory", source="/src"))
    log.add("img_1", events.ImageCreated(digest="sha256:0", size_bytes=10, file_count=2))
    for number in range(sandboxes):
        running_sandbox(log, f"sbx_{number}")
    return log.fold()


def test_every_status_has_a_word_for_not_being_ready() -> None:
    statuses = {*get_args(SandboxStatus)} - {"running"}
    assert set(rules.WHY_NOT_READY) == statuses


FILES = "updated restore_requested fork_requested snapshot.create_requested"
LIVE = "checkpoint.create_requested adopted"
MAY = {
    "creating": "created create_failed terminate_requested",
    "running": f"{LIVE} {FILES} suspend_requested suspended failed lost terminate_requested process.launch_requested",
    "suspending": "suspended suspend_failed failed lost terminate_requested",
    "suspended": f"{LIVE} {FILES} resume_requested resumed failed lost terminate_requested",
    "resuming": "resumed resume_failed failed lost terminate_requested",
    "restoring": "restored restore_failed terminate_requested",
    "stopping": "terminated lost",
    "stopped": "",
    "failed": f"{FILES} resume_requested terminate_requested",
    "lost": f"{FILES} resume_requested terminate_requested",
}


NOT_DECIDED = {
    "sandbox.create_requested": "it is the first",
    "sandbox.moved": "another daemon tells it",
    "sandbox.file_written": "it tells of what was written while the sandbox ran",
}


def test_what_may_follow_in_each_state_of_a_sandbox() -> None:
    """The table read the other way round: nothing is allowed that is not meant to be."""
    assert set(MAY) == {*get_args(SandboxStatus)}
    sandbox = world().sandboxes["sbx_0"]
    for status, words in MAY.items():
        sandbox.status = status  # type: ignore[assignment]
        allowed = {kind for kind in SANDBOX.sources if rules.may(sandbox, kind)} - {*NOT_DECIDED}
        assert allowed == {word if "." in word else f"sandbox.{word}" for word in words.split()}, status


def test_what_is_started_anew() -> None:
    sandbox = world().sandboxes["sbx_0"]
    sandbox.status = "lost"
    rules.revive(sandbox, {}, can_revive=True)
    assert "'fake'" not in refused("not_ready", rules.revive, sandbox, {}, can_revive=False).message
    sandbox.requested = msgspec.structs.replace(sandbox.requested, secrets=["A", "B", "C"])
    error = refused("secret_missing", rules.revive, sandbox, {"B": "x"}, can_revive=True)
    assert error.data["secrets"] == ["A", "C"]
    sandbox.made = False
    refused("not_ready", rules.revive, sandbox, {}, can_revive=True)
    sandbox.status = "stopped"
    assert "has ended" in refused("not_ready", rules.revive, sandbox, {}, can_revive=True).message


WITHOUT_EVENT = {
    "process.write_stdin": "the bytes of streams are not events",
    "process.cancel": "what comes of it is told by process.signalled",
    "process.resize": "a size says nothing about the past",
    "stream.access": "tokens are not events",
    "daemon.shutdown": "daemon.stopped tells it",
    "store.prune": "each removal that comes of it has an intent of its own: image.remove_requested, "
    "output.remove_requested",
    "snapshot.gc": "each deletion that comes of it has an intent of its own: snapshot.delete_requested for what "
    "retention lets go, archive.remove_requested for what no snapshot owns",
}


def test_every_intent_has_its_outcomes() -> None:
    """Pairs are derived from the definitions: an intent without an outcome, or a mutation without an intent, fails
    here.
    """
    for kind in EVENTS.values():
        assert bool(kind.outcomes) == kind.type.endswith("_requested"), kind.type
        for outcome in kind.outcomes:
            assert outcome in EVENTS, f"{kind.type} names {outcome}, which is no event"
            assert outcome.split(".")[0] == kind.type.split(".")[0]
    for method in METHODS.values():
        if method.intent is not None:
            assert method.intent in EVENTS
        elif method.mutates:
            assert method.name in WITHOUT_EVENT


def test_an_image_in_use_is_not_removed() -> None:
    error = refused("in_use", rules.remove_image, world(), "img_1", [])
    assert "sbx_0" in error.message
    assert refused("in_use", rules.remove_image, world(sandboxes=0), "img_1", ["pending"])
    assert rules.remove_image(world(sandboxes=0), "img_1", []) == events.ImageRemoveRequested()


NO_NAMES = [*(f"{prefix}_1" for prefix in sorted(PREFIXES)), "log_1", "../x", "a/b", "", "x" * 65, "ü", "a\n"]


@pytest.mark.parametrize("given", NO_NAMES)
def test_names_that_could_be_ids_or_have_another_shape_are_refused(given: str) -> None:
    assert refused("invalid", check_new_name, given, "name").data["field"] == "name"


@pytest.mark.parametrize("given", ["log", "daemon", "sbx", "my_box", "x" * 64, "1.0-rc_1"])
def test_other_names_are_free(given: str) -> None:
    assert check_new_name(given, "name") == given


def test_the_spec_of_a_sandbox_is_complete() -> None:
    image, spec = rules.create_sandbox(world(), SandboxCreate(image_id="img_1", cpus=2.0))
    assert (image.image_id, spec.cpus, spec.disk_bytes) == ("img_1", 2.0, None)


@pytest.mark.parametrize(
    ("asked", "session", "default", "longest", "expected"),
    [
        (None, None, None, None, None), (60, None, None, None, 60),
        (None, None, 7200, None, 7200), (60, None, 7200, None, 60), (9000, None, 7200, None, 9000),
        (None, None, 90_000, 86_400, 86_400), (None, None, None, 86_400, 86_400), (90_000, None, 1, 86_400, 90_000),
        (None, (600,), None, None, None), (None, (600,), 7200, None, 2500), (None, (None,), 7200, None, 9100),
        (None, (90_000,), 7200, 86_400, 86_400), (None, (None,), None, 86_400, 86_400),
    ],
)  # fmt: skip
def test_a_sandbox_that_costs_money_has_an_end(
    asked: float | None, session: tuple[float | None] | None, default: float | None, longest: float | None,
    expected: float | None,
) -> None:  # fmt: skip
    spec, of = SandboxSpec(max_lifetime_s=asked), None
    if session is not None:
        wanted = SessionSpec(image="img_1", max_lifetime_s=session[0])
        start = events.SessionStartRequested(owner="uid:7", session_id="s", spec=wanted)
        of = SessionState(key="ses_1", requested=start, requested_us=0, created_us=0, position=1, revision=0)
    assert rules.with_lifetime(spec, of, default_s=default, longest_s=longest, keep_s=100).max_lifetime_s == expected


def test_another_provider_than_the_images_is_refused() -> None:
    command = SandboxCreate(image_id="img_1", provider="docker")
    assert "made for the provider 'fake'" in refused("not_supported", rules.create_sandbox, world(), command).message


def test_an_environment_too_large_for_the_record_is_refused() -> None:
    command = SandboxCreate(image_id="img_1", env={"A": "x" * rules.MAX_SPEC_BYTES})
    assert refused("invalid", rules.create_sandbox, world(), command).data["field"] == "env"


def test_names_of_processes_are_unique_in_a_sandbox() -> None:
    state = world()
    sandbox = state.sandboxes["sbx_0"]
    command = ProcessLaunch(sandbox_id="sbx_0", command=["true"], name="web")
    event = rules.launch(sandbox, command, "web")
    assert event.command == ["true"]
    refused("conflict", rules.launch, sandbox, command, "web", taken=True)
    refused("invalid", rules.launch, sandbox, command, "prc_web")


@pytest.mark.parametrize("status", sorted(rules.WHY_NOT_READY))
def test_nothing_starts_in_a_sandbox_that_does_not_run(status: Any) -> None:
    sandbox = world().sandboxes["sbx_0"]
    sandbox.status = status
    error = refused("not_ready", rules.launch, sandbox, SandboxExec(sandbox_id="sbx_0", command="true"), None)
    assert error.data["status"] == status


def test_a_failed_sandbox_says_why_to_those_who_use_it() -> None:
    sandbox = world().sandboxes["sbx_0"]
    sandbox.status, sandbox.error = "failed", ("provider_unavailable", "its kernel ended")
    for made, why in ((True, "failed (its kernel ended): resume it"), (False, "was never created (its kernel ended)")):
        sandbox.made = made
        error = refused("not_ready", rules.launch, sandbox, SandboxExec(sandbox_id="sbx_0", command="true"), None)
        assert error.message.startswith(f"sandbox sbx_0 {why}")


@pytest.mark.parametrize(
    "command",
    [["sh", "-c", "x" * 131071], ["\x01" * 131071], ["a"] * 4096, ["ü" * 40_000, "b"], ["x" * 131071] * 5],
)
def test_a_huge_command_fits_into_its_event_cut(command: list[str]) -> None:
    asked = SandboxExec(sandbox_id="sbx_0", command=command, env={f"K{i:0>200}": "v" for i in range(1024)})
    event = rules.launch(world().sandboxes["sbx_0"], asked, None)
    assert event.command_cut
    assert len(CODEC.encode(event)) < MAX_EVENT_BYTES


def test_a_command_that_no_program_could_get_is_refused() -> None:
    asked = SandboxExec(sandbox_id="sbx_0", command=["x" * 131071] * 9)
    assert refused("invalid", rules.launch, world().sandboxes["sbx_0"], asked, None).data["field"] == "command"


def test_secrets_leave_only_their_names() -> None:
    asked = SandboxExec(sandbox_id="sbx_0", command=["env"], secrets={"TOKEN": "hunter2"})
    event = rules.launch(world().sandboxes["sbx_0"], asked, None)
    assert event.secrets == ["TOKEN"]
    assert b"hunter2" not in CODEC.encode(event)
    assert "hunter2" not in repr(asked)


@pytest.mark.parametrize(("text", "number"), [("TERM", 15), ("SIGKILL", 9), ("2", 2), ("USR1", 10)])
def test_signals_by_name_or_number(text: str, number: int) -> None:
    assert parse_signal(text) == number


@pytest.mark.parametrize("text", ["NOPE", "0", "999", "SIGSIGTERM"])
def test_what_is_no_signal_is_refused(text: str) -> None:
    refused("invalid", parse_signal, text)


@pytest.mark.parametrize(
    ("provider", "plan", "disk_bytes"),
    [
        ("local", {"uid": 7}, None),
        ("local", {"uid": 7, "own_disk": True}, 10 << 30),
        ("gvisor", {"uid": 7}, None),
        ("docker", {"disk_bytes": 10 << 30}, 10 << 30),
    ],
)
def test_forks_are_not_given_the_default_disk_limit_that_was_recorded(
    provider: str, plan: dict[str, Any], disk_bytes: int | None
) -> None:
    """It would be reserved for each of them, or refused."""
    spec = SandboxSpec(disk_bytes=10 << 30, cpus=2.0)
    asked = events.SandboxCreateRequested(owner="uid:0", image_id="img_0", provider=provider, spec=spec, plan=plan)
    assert rules.asked_spec(asked) == SandboxSpec(disk_bytes=disk_bytes, cpus=2.0)
