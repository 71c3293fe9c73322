"""Intents and their outcomes when things go wrong: providers that fail or hang, full disks, daemons that died."""

import errno
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.support.expect import refused_async, until_async
from tests.support.inside import Inside, inside
from tests.support.patience import patient

from sandkeep import events, model
from sandkeep.errors import DaemonError, ProviderError, SandkeepError
from sandkeep.events import Meta
from sandkeep_store.eventlog.log import NewEvent
from sandkeep_store.threads import check_cancelled
from sandkeepd.contract.images import ImageRequest
from sandkeepd.core import core as core_module
from sandkeepd.keeper.client import KeeperInstance
from sandkeepd.providers.common.layout import Layout
from sandkeepd.sandboxes.images import tag_image
from sandkeepd.sandboxes.runtimes import start_in


async def test_an_import_that_fails_is_on_record(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon:
        daemon.fake.faults.import_error = ProviderError("provider_unavailable", "no")
        await refused_async("provider_unavailable", daemon.image(source))
        (image,) = daemon.core.state.images.values()
        assert image.view().status == "failed"


async def test_an_image_whose_name_goes_to_another_is_not_removed_by_that(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon, trio.open_nursery() as nursery:
        image_id = await daemon.image(source, name="moving")
        other = await daemon.image(source, clean=True)
        await daemon.call("image.tag", image_id=image_id, name="stays")
        async with daemon.images.holds.naming:
            nursery.start_soon(refused_async, "not_found", daemon.call("image.remove", image_id="moving"))
            await until_async(lambda: daemon.images.holds.naming.statistics().tasks_waiting == 1)
            state = daemon.core.state
            await daemon.core.log.append(tag_image(state, state.images[other], "moving"), Meta())
        await until_async(lambda: not nursery.child_tasks)
        assert (await daemon.call("image.get", image_id=image_id)).names == ["stays"]
        assert (await daemon.call("image.get", image_id="moving")).image_id == other


async def test_a_creation_that_fails_is_on_record_and_leaves_the_image_free(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon:
        image_id = await daemon.image(source)
        daemon.fake.faults.create_error = ProviderError("provider_unavailable", "no room")
        await refused_async("provider_unavailable", daemon.call("sandbox.create", image_id=image_id, name="box"))
        assert await daemon.types("box") == ["sandbox.create_requested", "sandbox.create_failed"]
        assert (await daemon.call("sandbox.terminate", sandbox_id="box")).status == "stopped"
        assert (await daemon.call("image.remove", image_id=image_id)).status == "removed"


async def test_a_defect_of_a_provider_is_internal_and_on_record(state_dir: str, source: str, caplog: Any) -> None:
    async with inside(state_dir) as daemon:
        image_id = await daemon.image(source)
        daemon.fake.faults.create_error = ZeroDivisionError("oops")  # type: ignore[assignment]
        error = await refused_async("internal", daemon.call("sandbox.create", image_id=image_id, name="box"))
        assert "oops" not in error.message
        assert daemon.box().status == "failed"


async def test_a_sandbox_that_is_being_made_can_be_terminated(state_dir: str, source: str) -> None:
    """Also by a provider that would take for ever; and meanwhile reads are answered."""
    async with inside(state_dir) as daemon, trio.open_nursery() as nursery:
        image_id = await daemon.image(source)
        daemon.fake.faults.create_delay_s = 3600

        async def create() -> None:
            await refused_async("conflict", daemon.call("sandbox.create", image_id=image_id, name="box"))

        nursery.start_soon(create)
        await daemon.appears("box")
        assert (await daemon.call("sandbox.list")).sandboxes[0].status == "creating"
        await refused_async("not_ready", daemon.call("sandbox.exec", sandbox_id="box", command="true"))
        await refused_async("in_use", daemon.call("image.remove", image_id=image_id))
        assert (await daemon.call("sandbox.terminate", sandbox_id="box")).status == "stopped"
        assert await daemon.types("box") == [
            "sandbox.create_requested",
            "sandbox.terminate_requested",
            "sandbox.terminated",
        ]
        assert (await daemon.fake.found())[0] == []


async def test_an_end_that_fails_is_tried_until_it_works(
    state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandkeepd.core.retry.RETRY_S", 0.01)
    async with inside(state_dir) as daemon, trio.open_nursery() as nursery:
        image_id = await daemon.image(source)
        await daemon.call("sandbox.create", image_id=image_id, name="box")
        daemon.fake.faults.terminate_error = ProviderError("provider_unavailable", "stuck")
        ended = trio.Event()

        async def terminate() -> None:
            assert (await daemon.call("sandbox.terminate", sandbox_id="box")).status == "stopped"
            ended.set()

        nursery.start_soon(terminate)
        await daemon.core.settled(daemon.id_of(), lambda: daemon.box().status == "stopping")
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert not ended.is_set()
        daemon.fake.faults.terminate_error = None
        with trio.fail_after(patient(60)):
            await ended.wait()


async def test_two_that_terminate_at_once_do_it_once(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon:
        image_id = await daemon.image(source)
        await daemon.call("sandbox.create", image_id=image_id, name="box")
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(lambda: daemon.call("sandbox.terminate", sandbox_id="box"))
        assert (await daemon.types("box")).count("sandbox.terminate_requested") == 1


async def test_two_that_take_one_id_or_name_at_once(state_dir: str, source: str) -> None:
    """Exactly one of many gets it; the others are told `conflict`, and nothing of theirs is on record."""
    async with inside(state_dir) as daemon:
        image_id = await daemon.image(source)
        codes: list[str] = []

        async def attempt(method: str, **params: Any) -> None:
            try:
                await daemon.call(method, **params)
            except SandkeepError as error:
                codes.append(error.code)

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(lambda: attempt("sandbox.create", image_id=image_id, name="box"))
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(
                    lambda: attempt("process.launch", sandbox_id="box", command=["sleep", "60"], name="web")
                )
        assert codes == ["conflict"] * 8
        assert (await daemon.types("box")).count("process.launch_requested") == 1
        await daemon.call("sandbox.terminate", sandbox_id="box")


async def test_an_outcome_that_the_disk_refuses_is_recorded_later(
    state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller is told at once that it cannot be recorded; what happened is on record as soon as that works again."""
    monkeypatch.setattr(core_module, "RETRY_S", 0.01)
    async with inside(state_dir) as daemon:
        image_id = await daemon.image(source)
        append = daemon.core.log.append

        async def fails_for_outcomes(new: Any, meta: Meta, **more: Any) -> Any:
            if any(isinstance(entry.event, events.SandboxCreated) for entry in new):
                raise DaemonError("storage_unavailable", "the disk is full")
            return await append(new, meta, **more)

        monkeypatch.setattr(daemon.core.log, "append", fails_for_outcomes)
        await refused_async("storage_unavailable", daemon.call("sandbox.create", image_id=image_id, name="box"))
        head = daemon.core.log.head
        monkeypatch.setattr(daemon.core.log, "append", append)
        with trio.fail_after(patient(60)):
            await daemon.core.log.wait(head)
        assert (await daemon.call("sandbox.get", sandbox_id="box")).status == "running"
        await daemon.call("sandbox.terminate", sandbox_id="box")


@pytest.fixture
def removing(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[str], threading.Event]]:
    """The sandboxes whose files are being removed, or were, and what lets the removals go on."""
    begun, released, clear = list[str](), threading.Event(), Layout.clear

    def held(layout: Layout, sandbox_id: str) -> None:
        begun.append(sandbox_id)
        while not released.wait(0.01):
            check_cancelled()
        clear(layout, sandbox_id)

    monkeypatch.setattr(Layout, "clear", held)
    yield begun, released
    released.set()


async def test_files_may_take_longer_than_the_answer_of_a_provider(
    state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch, removing: tuple[list[str], threading.Event]
) -> None:
    """Callers that come later, or again, wait for the same removal."""
    monkeypatch.setattr("sandkeepd.sandboxes.termination.END_DEADLINE_S", 0.0)
    begun, released = removing
    async with inside(state_dir) as daemon, trio.open_nursery() as nursery:
        await daemon.call("sandbox.create", image_id=await daemon.image(source), name="box")
        statuses = list[str]()

        async def terminate() -> None:
            statuses.append((await daemon.call("sandbox.terminate", sandbox_id="box")).status)

        leaving = await nursery.start(_cancellable, terminate)
        await until_async(lambda: begun)
        leaving.cancel()
        for _ in range(2):
            nursery.start_soon(terminate)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert statuses == []
        released.set()
        await until_async(lambda: statuses == ["stopped", "stopped"])
        assert begun == [daemon.id_of()]


async def _cancellable(
    work: Callable[[], Awaitable[None]], *, task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await work()


async def test_ends_that_the_disk_refuses_remove_the_files_once(
    state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch, removing: tuple[list[str], threading.Event]
) -> None:
    begun, released = removing
    async with inside(state_dir) as daemon, trio.open_nursery() as nursery:
        await daemon.call("sandbox.create", image_id=await daemon.image(source), name="box")
        append, works, refusals = daemon.core.log.append, trio.Event(), list[Any]()

        async def fails(new: Any, meta: Meta, **more: Any) -> Any:
            if not works.is_set():
                refusals.append(new)
                raise DaemonError("storage_unavailable", "the disk is full")
            return await append(new, meta, **more)

        monkeypatch.setattr(daemon.core.log, "append", fails)
        for _ in range(2):
            nursery.start_soon(refused_async, "storage_unavailable", daemon.call("sandbox.terminate", sandbox_id="box"))
        await until_async(lambda: begun and len(refusals) == 2)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert begun == [daemon.id_of()]
        released.set()
        await until_async(lambda: not nursery.child_tasks)
        works.set()
        await until_async(lambda: daemon.box().status == "stopped")


async def test_an_end_that_the_disk_refuses_while_it_is_made_is_recorded_later(
    state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it was made is recorded first, when the disk works again; its end is not forgotten for that."""
    monkeypatch.setattr(core_module, "RETRY_S", 0.01)
    async with inside(state_dir) as daemon:
        image_id = await daemon.image(source)
        append = daemon.core.log.append
        works = trio.Event()

        async def fails(new: Any, meta: Meta, **more: Any) -> Any:
            box = daemon.core.state.sandbox_named("uid:0", "box")
            making = box is not None and box.status == "creating"
            made = isinstance(new[0].event, events.SandboxCreated)
            if making and not (made and works.is_set()):
                raise DaemonError("storage_unavailable", "the disk is full")
            return await append(new, meta, **more)

        monkeypatch.setattr(daemon.core.log, "append", fails)
        await refused_async("storage_unavailable", daemon.call("sandbox.create", image_id=image_id, name="box"))
        await refused_async("storage_unavailable", daemon.call("sandbox.terminate", sandbox_id="box"))
        works.set()
        await until_async(lambda: daemon.box().status == "stopped")
        assert await daemon.fake.found() == ([], [image_id])


async def test_journals_that_the_disk_does_not_take_keep_no_end_from_being_known(
    state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with inside(state_dir) as daemon:
        await daemon.call("sandbox.create", image_id=await daemon.image(source), name="box")

        def fails(fd: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "fsync", fails)
        with trio.fail_after(patient(60)):
            done = await daemon.call("sandbox.exec", sandbox_id="box", command=["sh", "-c", "exit 3"], durable=True)
        monkeypatch.undo()
        assert done.exit_code == 3
        await daemon.call("sandbox.terminate", sandbox_id="box")


# -- what a daemon finds when it starts -------------------------------------------------------------------------------


async def recorded(daemon: Inside, *new: NewEvent) -> None:
    await daemon.core.log.append(new, Meta(owner="uid:0"))


def asked(image_id: str) -> events.SandboxCreateRequested:
    return events.SandboxCreateRequested(owner="uid:0", image_id=image_id, provider="fake", spec=model.SandboxSpec())


async def test_intents_without_an_outcome_are_undone_or_finished(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon:
        image_id = await daemon.image(source)
        spare = (await daemon.call("image.create", source=source, provider="fake", clean=True)).image_id
        ending = (await daemon.call("sandbox.create", image_id=image_id, name="ending")).sandbox_id
        half = events.ImageCreateRequested(owner="uid:0", provider="fake", kind="directory", source=source)
        await recorded(
            daemon,
            NewEvent("img_half", half),
            NewEvent("half-made", asked(image_id), "half-made"),
            NewEvent(ending, events.SandboxTerminateRequested(reason="requested"), ending),
            NewEvent(spare, events.ImageRemoveRequested()),
        )
    async with inside(state_dir) as daemon:
        await daemon.reconciler.run()
        state = daemon.core.state
        assert (state.images["img_half"].status, state.images[spare].status) == ("failed", "removed")
        assert "daemon stopped while it was being made" in (state.images["img_half"].view().error or "")
        assert (state.sandboxes["half-made"].status, daemon.box("ending").status) == ("failed", "stopped")
        assert await daemon.fake.found() == ([], [image_id])


async def test_what_a_client_begins_before_the_start_has_looked_is_not_undone(state_dir: str, source: str) -> None:
    """A daemon serves before it has asked its providers what they have."""
    half = events.ImageCreateRequested(owner="uid:0", provider="fake", kind="directory", source=source)
    async with inside(state_dir) as daemon:
        image_id = await daemon.image(source)
        box = (await daemon.call("sandbox.create", image_id=image_id, name="box")).sandbox_id
        await recorded(daemon, NewEvent("img_earlier", half))
    async with inside(state_dir) as daemon:
        fork = events.SandboxForkRequested(sandbox_ids=["other"])
        place = model.Place(where="directory", base=state_dir, path="half.tar", uri=f"{state_dir}/half.tar")
        archive = events.SnapshotCreateRequested(owner="uid:0", kind="full", format="tar", places=[place])
        await recorded(
            daemon,
            NewEvent("img_half", half),
            NewEvent("half-made", asked(image_id), "half-made"),
            NewEvent("snp_half", archive, box),
            NewEvent("frk_half", fork, box),
        )
        begin = trio.Event()
        begin.set()
        await daemon.reconciler.run(begin)
        state = daemon.core.state
        assert (state.images["img_earlier"].status, state.images["img_half"].status) == ("failed", "creating")
        assert (state.sandboxes["half-made"].status, state.snapshots["snp_half"].status) == ("creating", "creating")
        assert state.forks["frk_half"].ended_us is None
    async with inside(state_dir) as daemon:
        await daemon.reconciler.run()
        state = daemon.core.state
        assert (state.images["img_half"].status, state.sandboxes["half-made"].status) == ("failed", "failed")
        assert state.snapshots["snp_half"].status == "failed"
        assert state.forks["frk_half"].ended_us is not None
        await daemon.call("sandbox.terminate", sandbox_id="box")


async def test_what_no_event_owns_is_removed(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon:
        image_id = await daemon.image(source)
        stray = ImageRequest(kind="directory", source=source)
        await daemon.fake.images.make("img_stray", stray, daemon_caller(), _no_progress)
        instance = await daemon.fake.create("stray", image_id, model.SandboxSpec(), {}, {})
        await instance.aclose()
        assert (await daemon.fake.found())[0] == ["stray"]
    async with inside(state_dir) as daemon:
        await daemon.reconciler.run()
        assert await daemon.fake.found() == ([], [image_id])


def daemon_caller() -> Any:
    from sandkeepd.contract.caller import Caller

    return Caller(uid=0, gid=0)


async def _no_progress(message: str) -> None:
    pass


async def test_a_launch_that_never_reached_the_sandbox_failed(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon:
        image_id = await daemon.image(source)
        await daemon.call("sandbox.create", image_id=image_id, name="box")
        await daemon.call("process.launch", sandbox_id="box", command=["sleep", "60"], name="runs")
        launch = events.ProcessLaunchRequested(sandbox_id=daemon.id_of(), name="lost", command=["true"])
        await recorded(daemon, NewEvent("prc_lost", launch, daemon.id_of()))
    async with inside(state_dir) as daemon:
        await daemon.reconciler.run()
        with trio.fail_after(patient(60)):
            await daemon.core.settled("prc_lost", lambda: daemon.core.state.processes["prc_lost"].ended)
        view = await daemon.call("process.get", sandbox_id="box", name="lost")
        assert (view.status, view.exit_code) == ("failed", None)
        assert (await daemon.call("process.get", sandbox_id="box", name="runs")).status == "running"
        assert (await daemon.call("sandbox.exec", sandbox_id="box", command="echo hi")).stdout == b"hi\n"
        await daemon.call("sandbox.terminate", sandbox_id="box")


async def test_an_exit_code_survives_many_restarts(state_dir: str, source: str) -> None:
    """Each daemon asks after what runs, and the answers lie before the line that tells the end."""
    async with inside(state_dir) as daemon:
        image_id = await daemon.image(source)
        view = await daemon.call("sandbox.create", image_id=image_id, name="box")
        script = "while [ ! -e stop ]; do sleep 0.02; done; exit 3"
        await daemon.call("process.launch", sandbox_id="box", command=script, name="web")
    for _ in range(8):
        async with inside(state_dir) as daemon:
            await daemon.reconciler.run()
            assert (await daemon.call("sandbox.exec", sandbox_id="box", command="true")).exit_code == 0
    Path(view.isolation.workspace, "stop").touch()
    (exits,) = Path(state_dir).rglob("exits")
    await until_async(lambda: " 3\n" in exits.read_text())
    async with inside(state_dir) as daemon:
        await daemon.reconciler.run()
        with trio.fail_after(patient(60)):
            assert (await daemon.call("process.wait", sandbox_id="box", name="web")).exit_code == 3
        await daemon.call("sandbox.terminate", sandbox_id="box")


async def test_a_sandbox_that_hangs_delays_nobody_else(
    state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its provider's silence is no loss: it is asked again, and its end is carried out when it answers."""
    for setting in ("app.reconcile.ANSWER_DEADLINE_S", "core.retry.RETRY_S"):
        monkeypatch.setattr(f"sandkeepd.{setting}", 0.1)
    async with inside(state_dir) as daemon:
        image_id = await daemon.image(source)
        for name in ("hangs", "well"):
            await daemon.call("sandbox.create", image_id=image_id, name=name)
    async with inside(state_dir) as daemon:
        adopt, tries, answers = daemon.fake.adopt, list[str](), trio.Event()

        async def hang(sandbox_id: str, *rest: Any) -> Any:
            if sandbox_id == daemon.id_of("hangs"):
                tries.append(sandbox_id)
                if not answers.is_set():
                    await trio.sleep_forever()
                raise ProviderError("provider_unavailable", "no")
            return await adopt(sandbox_id, *rest)

        monkeypatch.setattr(daemon.fake, "adopt", hang)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(daemon.reconciler.run)
            assert (await daemon.call("sandbox.exec", sandbox_id="well", command="echo hi")).stdout == b"hi\n"
            await until_async(lambda: len(tries) >= 2)
            monkeypatch.setattr("sandkeepd.sandboxes.runtimes.ADOPTION_PATIENCE_S", 0.1)
            asked = daemon.call("sandbox.exec", sandbox_id="hangs", command="x")
            error = await refused_async("provider_unavailable", asked)
            assert "did not answer" in error.message
            before = len(tries)
            answers.set()
            await until_async(lambda: len(tries) >= before + 2)
            view = await daemon.call("sandbox.get", sandbox_id="hangs")
            assert (view.status, view.error, view.note.endswith(": no")) == ("running", None, True)
            for name in ("hangs", "well"):
                assert (await daemon.call("sandbox.terminate", sandbox_id=name)).status == "stopped"
        assert "sandbox.lost" not in await daemon.types("hangs")


async def test_what_cannot_be_undone_at_once_is_undone_later(
    state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandbox half made is not stuck because its provider failed once; and its end can be ordered meanwhile."""
    monkeypatch.setattr("sandkeepd.core.retry.RETRY_S", 0.05)
    async with inside(state_dir) as daemon:
        image_id = await daemon.image(source)
        await recorded(daemon, NewEvent("later", asked(image_id), "later"), NewEvent("ended", asked(image_id), "ended"))
    async with inside(state_dir) as daemon, trio.open_nursery() as nursery:
        daemon.fake.faults.terminate_error = ProviderError("provider_unavailable", "not now")
        nursery.start_soon(daemon.reconciler.run)
        nursery.start_soon(lambda: daemon.call("sandbox.terminate", sandbox_id="ended"))
        await daemon.core.settled(daemon.id_of("ended"), lambda: daemon.box("ended").status == "stopping")
        assert (await daemon.call("sandbox.get", sandbox_id="later")).status == "creating"
        daemon.fake.faults.terminate_error = None
        with trio.fail_after(patient(60)):
            await daemon.core.settled(daemon.id_of("later"), lambda: daemon.box("later").status == "failed")
            await daemon.core.settled(daemon.id_of("ended"), lambda: daemon.box("ended").status == "stopped")
        assert "sandbox.create_failed" not in await daemon.types("ended")


async def test_a_process_whose_sandbox_does_not_answer_at_first_is_followed_later(
    state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandkeepd.core.retry.RETRY_S", 0.05)
    async with inside(state_dir) as daemon:
        image_id = await daemon.image(source)
        await daemon.call("sandbox.create", image_id=image_id, name="box")
        await daemon.call("process.launch", sandbox_id="box", command="read x; exit 3", name="web", stdin=True)
    find, asked_for = KeeperInstance.find, list[str]()

    async def silent_at_first(self: KeeperInstance, process_id: str) -> int | None:
        asked_for.append(process_id)
        if len(asked_for) < 3:
            raise ProviderError("provider_unavailable", "it did not answer")
        return await find(self, process_id)

    monkeypatch.setattr(KeeperInstance, "find", silent_at_first)
    async with inside(state_dir) as daemon:
        await daemon.reconciler.run()
        await until_async(lambda: len(asked_for) >= 3)
        with trio.fail_after(patient(60)):
            await daemon.call("process.write_stdin", sandbox_id="box", name="web", data=b"go\n")
            assert (await daemon.call("process.wait", sandbox_id="box", name="web")).exit_code == 3
        await daemon.call("sandbox.terminate", sandbox_id="box")


async def test_a_command_that_meets_the_end_of_its_sandbox_is_refused_when_that_is_on_record(
    state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each step of that end: the sandbox's own task hears of it first, and its record comes last."""
    async with inside(state_dir) as daemon:
        await daemon.call("sandbox.create", image_id=await daemon.image(source), name="box")
        core, sandbox, steps = daemon.core, daemon.box(), 0
        runtime, intend = await daemon.sandboxes.runtimes.running(sandbox), daemon.core.intend

        async def intend_at_the_end(new: NewEvent, *args: Any, **params: Any) -> Any:
            nonlocal steps
            intent = await intend(new, *args, **params)
            core.nursery.start_soon(daemon.fake.lose, sandbox.sandbox_id, {})
            while start_in(runtime, trio.lowlevel.checkpoint, core, "a command"):
                await trio.lowlevel.checkpoint()
                steps += 1
            return intent

        monkeypatch.setattr(core, "intend", intend_at_the_end)
        await refused_async("not_ready", daemon.call("sandbox.exec", sandbox_id="box", command=["true"]))
        assert steps
        assert sandbox.status == "failed"
