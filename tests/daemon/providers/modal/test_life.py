"""Sandboxes at Modal from making to end: what Modal gets to know, and what happens when it fails."""

import asyncio
import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.conformance.conftest import no_progress, run, sh
from tests.daemon.providers.modal.conftest import CALLER, House, Opener
from tests.support.expect import DEADLINE_S, refused_async, until_async
from tests.support.kubernetes.images import BARE, TOOLS
from tests.support.modal.accounts import account_at
from tests.support.modal.service import Modal

from sandkeep.errors import SandkeepError
from sandkeep.ids import IMAGE, PROCESS, SANDBOX, new_id
from sandkeep.model import SandboxSpec
from sandkeepd.contract.caller import Caller
from sandkeepd.contract.images import ImageRequest
from sandkeepd.contract.instance import Ending
from sandkeepd.contract.processes import Launch
from sandkeepd.providers.common import relayed_provider
from sandkeepd.providers.modal import provider as provider_module
from sandkeepd.providers.modal import service as service_module
from sandkeepd.providers.modal.provider import ending_of, open_modal
from sandkeepd.providers.modal.sandbox import PROGRAM, ModalInstance
from sandkeepd.providers.modal.sdk import Account, Result, Sdk
from sandkeepd.providers.modal.service import Service

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("modal"), pytest.mark.usefixtures("nothing_is_left")]


# -- what Modal gets to know ------------------------------------------------------------------------------------------


async def test_what_was_asked_for_reaches_modal_and_secrets_do_not(house: House) -> None:
    box = await house.box(
        cpus=1.5, memory_bytes=256 << 20, max_lifetime_s=600.0, env={"WORD": "one", "TOKEN": "public"},
        labels={"modal.region": "us-east"}, session_id="ses_1", secrets={"TOKEN": "hush-8c1f"},
    )  # fmt: skip
    assert await sh(box, "echo $WORD $TOKEN; id -u; pwd") == "one hush-8c1f\n0\n/workspace\n"
    found = house.at_modal(box)
    definition = found["definition"]
    assert found["name"] == box.sandbox_id
    assert found["tags"] == {
        "sandkeep-sandbox": box.sandbox_id, "sandkeep-log": house.provider.log_id, "sandkeep-session": "ses_1",
        "sandkeep-owner": found["tags"]["sandkeep-owner"],
    }  # fmt: skip
    assert found["tags"]["sandkeep-owner"].startswith("uid-1000-")
    resources = definition["resources"]
    assert (resources["milli_cpu"], resources["milli_cpu_max"]) == (1500, 1500)
    assert (resources["memory_mb"], resources["memory_mb_max"]) == (256, 256)
    assert definition["timeout_secs"] == 660
    assert definition["network_access"]["network_access_type"] == "BLOCKED"
    assert definition["scheduler_placement"]["regions"] == ["us-east"]
    assert "hush-8c1f" not in str(house.service.sandboxes())
    assert box.handle["modal_sandbox_id"] == found["id"]


async def test_an_open_network(house: House) -> None:
    box = await house.box(network="bridge")
    assert house.at_modal(box)["definition"]["network_access"]["network_access_type"] == "OPEN"


async def test_a_gpu_takes_a_sandbox_of_the_first_version(house: House) -> None:
    box = await house.box(labels={"modal.gpu": "A10G"}, env={"WORD": "one"})
    found = house.at_modal(box)
    assert found["definition"]["resources"]["gpu_config"]["gpu_type"] == "A10G"
    assert len(found["id"]) == len("sb-") + 22  # the version's form of ids
    assert await sh(box, "echo $WORD") == "one\n"
    assert (await house.provider.found())[0] == [box.sandbox_id]


async def test_an_idle_sandbox_costs_no_calls(house: House) -> None:
    boxes = [await house.box() for _ in range(3)]
    for box in boxes:
        assert await sh(box, "echo said") == "said\n"
        assert len(vars(box)) < 30, "see `RelayedInstance`"

    async def calls_of_a_sweep() -> dict[str, int]:
        house.service.forget_calls()
        for box in boxes:
            box.sweep()  # as the provider does every 20 s
        await trio.sleep(2)
        counts: dict[str, int] = house.service.calls()["counts"]
        return counts

    with trio.fail_after(DEADLINE_S):
        while await calls_of_a_sweep():  # the first ones also remove what the commands left behind
            pass
    assert set(house.service.calls()["open"]) == {"TaskExecStdioRead"}  # no poll is under way
    assert all([await box.is_alive() for box in boxes])


async def test_a_sandbox_in_which_something_runs_is_asked_for_its_end(house: House) -> None:
    box = await house.box()
    await box.launch(Launch(process_id=new_id(PROCESS), command=["sleep", "100000"]))

    async def asks() -> bool:
        """A request before it may still be on its way."""
        house.service.forget_calls()
        box.sweep()
        await trio.sleep(0.1)
        return "TaskExecStdinWrite" in house.service.calls()["counts"]

    with trio.fail_after(DEADLINE_S):
        while not await asks():
            pass


# -- accounts ---------------------------------------------------------------------------------------------------------


async def test_without_a_token_nothing_is_asked(modal: Modal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MODAL_TOKEN_ID", raising=False)
    monkeypatch.setenv("MODAL_CONFIG_PATH", "/nonexistent")
    async with open_modal(str(tmp_path), log_id=new_id("log")) as provider:
        found = await provider.capabilities()
        assert not found.works
        assert "MODAL_TOKEN_ID" in (found.why or "")
        wanted = ImageRequest(kind="reference", source=TOOLS)
        error = await refused_async("not_configured", provider.images.make("img_1", wanted, CALLER, no_progress))
        assert error.data["setting"] == "MODAL_TOKEN_ID"
        assert not provider.service.loop.is_running


async def test_a_token_that_modal_does_not_accept(modal: Modal, opener: Opener) -> None:
    wrong = Account(server_url=modal.url, token_id="ak-wrong", token_secret="as-wrong")
    async with opener(wrong) as house:
        found = await house.provider.capabilities()
        assert "does not accept the token" in (found.why or "")
        await refused_async("not_configured", house.image())


async def test_a_malformed_token_is_in_no_error_and_no_log(
    modal: Modal, opener: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    malformed = Account(server_url=modal.url, token_id="ak-1", token_secret="as-hidden\n")
    async with opener(malformed) as house:
        error = await refused_async("not_configured", house.image())
        assert error.data["setting"] == "MODAL_TOKEN_SECRET"
        assert "as-hidden" not in error.message + str((await house.provider.capabilities()).why) + caplog.text


async def test_a_working_account_says_so(house: House) -> None:
    found = await house.provider.capabilities()
    assert (found.works, found.features["suspend"].works, found.features["snapshots"].works) == (True, False, True)


async def test_a_token_of_another_workspace_loses_no_sandbox(modal: Modal, opener: Opener) -> None:
    async with opener() as house:
        box = await house.box()
    other = account_at(modal, modal.issue_token("elsewhere"))
    async with opener(other) as house:
        error = await refused_async("provider_unavailable", house.adopt(box))
        assert "'tests'" in error.message
        assert "'elsewhere'" in error.message
        await refused_async("provider_unavailable", house.provider.terminate(box.sandbox_id, {}, box.handle))
    async with opener() as house:
        adopted = await house.adopt(box)
        assert await sh(adopted, "echo there") == "there\n"
        await house.provider.terminate(box.sandbox_id, {}, box.handle)


# -- ends -------------------------------------------------------------------------------------------------------------


async def ended(box: ModalInstance) -> Ending:
    with trio.fail_after(DEADLINE_S):
        return await box.ended()


async def test_an_end_outside_sandkeep(house: House) -> None:
    box = await house.box()
    await house.provider.service.call(lambda sdk: sdk.terminate(box.place.modal_sandbox_id))
    assert await ended(box) == Ending(kind="lost", message="it was terminated outside Sandkeep")


@pytest.mark.parametrize(
    ("result", "kind", "message"),
    [
        (Result(status="TIMEOUT", exit_code=0, message=""), "failed", "at the end of its time"),
        (Result(status="TERMINATED", exit_code=0, message=""), "lost", "outside Sandkeep"),
        (Result(status="KERNEL_OOM_KILL", exit_code=0, message=""), "failed", "out of memory"),
        (Result(status="FAILURE", exit_code=127, message=""), "failed", "needs sh, base64"),
        (Result(status="SUCCESS", exit_code=0, message=""), "failed", "exit code 0"),
        (Result(status="A_NEW_ONE", exit_code=1, message="\x1bwhy\n"), "failed", "exit code 1: why"),
    ],
)
def test_ends_as_modal_tells_them(result: Result, kind: str, message: str) -> None:
    found = ending_of(result)
    assert found.kind == kind
    assert message in found.message


async def test_the_keeper_and_the_sandbox_end_together(house: House) -> None:
    box = await house.box()
    script = """for each in /proc/[0-9]*; do
        case $(tr '\\0' ' ' <"$each/cmdline") in "$0 -p "*) kill -9 "${each#/proc/}";; esac
    done"""
    with suppress(SandkeepError):
        async with box.remote.exec(["sh", "-c", script, PROGRAM]) as stream:
            await stream.wait()
    assert (await ended(box)).kind == "failed"


async def test_an_image_without_a_shell_says_what_is_missing(house: House) -> None:
    details = await house.image(BARE)
    spec, sandbox_id = SandboxSpec(), new_id(SANDBOX)
    plan = house.provider.plan(sandbox_id, "img_1", spec, CALLER, [], details=details)
    error = await refused_async("provider_unavailable", house.provider.create(sandbox_id, "img_1", spec, {}, plan))
    assert "could not start" in error.message or "needs sh" in error.message
    assert (await house.provider.found())[0] == []


# -- failures ---------------------------------------------------------------------------------------------------------


async def test_an_answer_that_is_lost_makes_no_second_sandbox(house: House) -> None:
    """The SDK asks again, and the name is taken, by the first."""
    house.service.fault("SandboxCreateV2", after=True, drop=True)
    box = await house.box()
    assert await sh(box, "echo there") == "there\n"
    ours = [each for each in house.service.sandboxes() if each["name"] == box.sandbox_id]
    assert len(ours) == 1


async def test_a_name_that_somebody_else_has(house: House) -> None:
    box = await house.box()
    tags = {"sandkeep-sandbox": "sbx_other", "sandkeep-log": "log_other"}
    await house.provider.service.call(lambda sdk: _retag(sdk, box.place.modal_sandbox_id, tags))
    await refused_async("conflict", house.make(box.sandbox_id, SandboxSpec(), {}))
    assert await box.is_alive() or not (await house.provider.found())[0]
    await house.provider.service.call(lambda sdk: sdk.terminate(box.place.modal_sandbox_id))


async def _retag(sdk: Any, modal_id: str, tags: dict[str, str]) -> None:
    await (await sdk.attach(modal_id)).set_tags(tags)


async def test_a_start_that_fails_leaves_nothing(house: House) -> None:
    house.service.fault("TaskExecStart", status="NOT_FOUND", times=None)
    house.provider.service.opening.total_tokens = 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SANDKEEP_MODAL_START_TIMEOUT", "3")
        error = await refused_async("provider_unavailable", house.box())
    house.service.clear_faults()
    assert "cannot be reached" in error.message or "did not answer" in error.message
    assert (await house.provider.found())[0] == []


async def test_what_modal_makes_after_its_time_is_ended(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relayed_provider, "LATE_S", (0.2,) * 300)
    details = await house.image()
    sandbox_id = new_id(SANDBOX)
    house.service.fault("SandboxCreateV2", hang=True, times=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SANDKEEP_MODAL_START_TIMEOUT", "1")
        await refused_async("provider_unavailable", house.make(sandbox_id, SandboxSpec(), {}))
    house.service.clear_faults()
    tags = {"sandkeep-sandbox": sandbox_id, "sandkeep-log": house.provider.log_id}
    make = partial(Sdk.create, argv=["sleep", "1000"], image_id=details["modal_image_id"], name=sandbox_id, tags=tags)
    late = await house.provider.service.call(make)
    await until_async(lambda: next(each for each in house.service.sandboxes() if each["id"] == late.object_id)["ended"])


async def test_who_waits_for_a_connection_gets_its_error(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand sandboxes to adopt would else ask one after the other, and a caller behind them wait for hours."""
    service, attempts, errors = Service(account_at(house.service)), [], []

    async def connect(_account: Account, _app: str) -> Sdk:
        attempts.append(1)
        while len(attempts) == 1 and service._connecting.statistics().tasks_waiting < 19:
            await asyncio.sleep(0.01)
        raise ConnectionError("black hole")

    async def ask() -> None:
        errors.append(await refused_async("provider_unavailable", service.sdk()))

    monkeypatch.setattr(Sdk, "connect", connect)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ask)
    assert (len(attempts), len(errors)) == (1, 20)
    await ask()
    assert len(attempts) == 2
    await service.aclose()


async def test_no_room_at_modal(house: House) -> None:
    house.service.fault("SandboxCreateV2", status="RESOURCE_EXHAUSTED", message="the limit is 10", times=None)
    error = await refused_async("provider_unavailable", house.box())
    assert "the limit is 10" in error.message


async def test_processes_go_on_through_broken_connections(house: House) -> None:
    box = await house.box()
    script = "for n in 1 2 3; do read line; echo $line; done"
    await box.launch(Launch(process_id="p1", command=["sh", "-c", script], stdin=True))
    for word in (b"one\n", b"two\n", b"three\n"):
        house.service.fault("TaskExecStdioRead", status="NOT_FOUND", times=2)
        house.service.cut("TaskExecStdioRead", drop=True)
        await box.write_stdin("p1", word, eof=False)
        house.service.clear_faults()
    with trio.fail_after(DEADLINE_S):
        assert (await box.wait("p1")).exit_code == 0
    assert box.read("p1", "stdout", 0, 100).data == b"one\ntwo\nthree\n"


async def test_a_service_that_fails_ends_no_sandbox_and_no_task(house: House) -> None:
    box = await house.box()
    house.service.fault("Sandbox.*|Task.*", status="INTERNAL", times=None)
    house.service.cut(".*", drop=True)
    await until_async(lambda: box.why_disconnected)
    with pytest.raises(SandkeepError):
        await house.provider.found()
    house.service.clear_faults()
    with trio.fail_after(DEADLINE_S):
        assert (await run(box, "sh", "-c", "exit 3"))[0] == 3


async def test_a_cancelled_creation_waits_for_the_answer(house: House) -> None:
    """Else the sandbox might be made after it was looked for."""
    await house.image()
    house.service.forget_calls()
    house.service.fault("SandboxCreateV2", delay=0.5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(house.box)
        await until_async(lambda: house.service.calls()["counts"].get("SandboxCreateV2"))
        nursery.cancel_scope.cancel()
    assert (await house.provider.found())[0] == []


async def test_a_cancelled_creation_does_not_wait_for_ever(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a daemon does not stop while Modal does not answer."""
    monkeypatch.setattr(service_module, "CANCELLED_S", 0.2)
    monkeypatch.setattr(relayed_provider, "CANCELLED_S", 0.2)
    await house.image()
    house.service.forget_calls()
    house.service.fault("Sandbox.*", hang=True, times=None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(house.box)
        await until_async(lambda: house.service.calls()["counts"].get("SandboxCreateV2"))
        begun = trio.current_time()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - begun < DEADLINE_S


async def test_a_request_that_is_not_answered(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await house.image()
    house.service.fault("SandboxListV2", hang=True)
    monkeypatch.setattr(service_module.Service.call, "__defaults__", (0.3,))
    error = await refused_async("provider_unavailable", house.provider.found())
    assert error.data["engine"] == "modal"


# -- daemons one after the other --------------------------------------------------------------------------------------


async def test_many_are_adopted_by_one_list(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_module, "LISTED_S", 1e9)  # a busy machine takes more than two seconds to adopt some
    async with opener() as house:
        boxes = [await house.box() for _ in range(4)]
    async with opener() as house:
        house.service.forget_calls()
        for box in boxes:
            assert isinstance(await house.adopt(box), ModalInstance)
        counts = house.service.calls()["counts"]
        assert counts["SandboxListV2"] <= 2
        assert "SandboxWaitV2" not in counts
        for box in boxes:
            await house.provider.terminate(box.sandbox_id, {}, box.handle)
            assert await house.adopt(box) is None


async def test_copies_of_an_earlier_daemon_are_ended(opener: Opener, house: House) -> None:
    async with opener() as earlier:
        box = await earlier.box()
        script = "echo ready; touch /begun; read word <&4"
        async with box.run_piped(["sh", "-c", script], incoming=True) as command:
            os.close(command.take_data())
            command.leave_alone()
    adopted = await house.adopt(box)
    await until_async(lambda: adopted.is_closed or adopted.relay.connected.is_set())
    with trio.fail_after(DEADLINE_S):
        while "keeper -x" in await sh(adopted, "cat /proc/[0-9]*/cmdline 2>&- | tr '\\0' ' '; :"):
            await trio.sleep(0.1)
    await house.provider.terminate(box.sandbox_id, {}, box.handle)


async def test_a_daemon_s_own_copies_are_not_ended(house: House) -> None:
    box = await house.box()
    script = "echo ready; read word <&4; echo got $word"
    async with box.run_piped(["sh", "-c", script], incoming=True) as command:
        os.close(command.take_data())
        await box.at_modal.end_earlier()
        command.tell("word")
        with trio.fail_after(DEADLINE_S):
            assert await command.end() == "got word\n"


# -- images -----------------------------------------------------------------------------------------------------------


async def make(house: House, source: Path, kind: Any = "directory", **more: Any) -> dict[str, Any]:
    base = TOOLS if kind == "directory" else None
    wanted = ImageRequest(kind=kind, source=str(source), base=base, **more)
    return (await house.provider.images.make(new_id(IMAGE), wanted, CALLER, no_progress)).details


async def contents(house: House, details: dict[str, Any], script: str) -> str:
    spec, sandbox_id = SandboxSpec(), new_id(SANDBOX)
    plan = house.provider.plan(sandbox_id, "img_1", spec, CALLER, [], details=details)
    box = await house.provider.create(sandbox_id, "img_1", spec, {}, plan)
    house.plans[sandbox_id] = plan
    return await sh(box, script)


async def test_a_directory(house: House, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub/file").write_text("in it\n")
    (source / "sub/file").chmod(0o750)
    (source / "link").symlink_to("/etc/shadow")
    details = await make(house, source)
    script = "cat sub/file; stat -c %a sub/file; readlink link; ls -A"
    assert await contents(house, details, script) == "in it\n750\n/etc/shadow\nlink\nsub\n"
    assert os.listdir(f"{house.provider.layout.state_dir}/modal") == []


async def test_files_of_patterns_in_a_directory_count_unless_they_are_not_to(house: House, tmp_path: Path) -> None:
    for name in ("kept", "left"):
        (tmp_path / name).write_text("x")
    (tmp_path / ".dockerignore").write_text("left\n")
    assert await contents(house, await make(house, tmp_path), "ls") == "kept\n"
    assert await contents(house, await make(house, tmp_path, ignore_files=False), "ls") == "kept\nleft\n"


async def test_a_dockerfile(house: House, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "Dockerfile").write_text(f"FROM {TOOLS}\nCOPY . /there\nRUN echo built >/built\n")
    (source / "kept").write_text("kept\n")
    (source / "left").write_text("left\n")
    (source / ".dockerignore").write_text("left\n# a comment\n")
    details = await make(house, source, "dockerfile")
    assert await contents(house, details, "cat /built; ls /there") == "built\nDockerfile\nkept\n"


async def test_links_out_of_a_context_are_not_followed(house: House, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host\n")
    source = tmp_path / "source"
    source.mkdir()
    (source / "Dockerfile").write_text(f"FROM {TOOLS}\nCOPY . /there\n")
    (source / "link").symlink_to(secret)
    details = await make(house, source, "dockerfile")
    assert "of the host" not in await contents(house, details, "cat /there/* 2>/dev/null; :")
    (source / "Dockerfile").unlink()
    (source / "Dockerfile").symlink_to(secret)
    with pytest.raises(SandkeepError, match="invalid"):
        await make(house, source, "dockerfile")


async def test_a_directory_that_its_caller_may_not_read(house: House, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir(mode=0o700)
    wanted = ImageRequest(kind="directory", source=str(source), base=TOOLS)
    other = Caller(uid=40_000, gid=40_000)
    error = house.provider.images.make(new_id(IMAGE), wanted, other, no_progress)
    await refused_async("permission_denied", error)


async def test_a_build_that_fails_shows_its_log(house: House, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {TOOLS}\nRUN echo as expected; exit 3\n")
    with pytest.raises(SandkeepError, match="invalid") as caught:
        await make(house, tmp_path, "dockerfile")
    assert "as expected" in caught.value.message


async def test_an_image_that_is_unknown(house: House) -> None:
    with pytest.raises(SandkeepError):
        await house.image("nobody/has-this:1")
