"""A provider whose engine is down: what is ordered stays on record and is carried out later; nobody waits for that."""

import logging
from typing import Any

import pytest
import trio
from tests.support.expect import refused_async, until_async
from tests.support.inside import Inside, inside
from tests.support.patience import patient

from sandkeep.errors import ProviderError

DOWN = ProviderError("provider_unavailable", "the engine is down: start it", engine="fake")


async def unavailable(call: Any) -> str:
    return (await refused_async("provider_unavailable", call)).message


def status(daemon: Inside, sandbox_id: str) -> str:
    return str(daemon.box(sandbox_id).status)


async def until_stopped(daemon: Inside, sandbox_id: str) -> None:
    with trio.fail_after(patient(60)):
        while status(daemon, sandbox_id) != "stopped":
            await daemon.core.changed(daemon.id_of(sandbox_id))


@pytest.fixture(autouse=True)
def _only_when_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is tried again before the engine says that it is there."""
    monkeypatch.setattr("sandkeepd.core.retry.RETRY_S", 1000.0)


async def test_an_end_is_ordered_and_told_and_carried_out_when_the_engine_answers(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon, trio.open_nursery() as nursery:
        image_id = await daemon.image(source)
        for sandbox_id in ("box", "other"):
            await daemon.call("sandbox.create", image_id=image_id, name=sandbox_id)
        await daemon.call("process.launch", sandbox_id="box", name="web", command=["sleep", "1000"])
        told = trio.Event()

        async def wait() -> None:
            await unavailable(daemon.call("process.wait", sandbox_id="box", name="web"))
            told.set()

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        daemon.fake.faults.down = DOWN
        for _ in range(2):
            message = await unavailable(daemon.call("sandbox.terminate", sandbox_id="box", command_id="end"))
            assert message == (
                "the engine is down: start it; the termination of sandbox box is on record, "
                "and will be carried out when it answers"
            )
        await told.wait()
        view = await daemon.call("sandbox.get", sandbox_id="box")
        assert (view.status, view.note) == ("stopping", message)
        assert (await daemon.call("sandbox.exec", sandbox_id="other", command="echo hi")).stdout == b"hi\n"
        await trio.testing.wait_all_tasks_blocked(0.01)
        daemon.fake.faults.mend()
        await until_stopped(daemon, "box")
        assert (await daemon.call("sandbox.terminate", sandbox_id="box", command_id="end")).note is None
        assert (await daemon.types("box")).count("sandbox.terminate_requested") == 1
        assert (await daemon.call("process.wait", sandbox_id="box", name="web")).exit_code == 137


async def test_also_by_the_next_daemon(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon:
        image_id = await daemon.image(source)
        for sandbox_id in ("box", "other"):
            await daemon.call("sandbox.create", image_id=image_id, name=sandbox_id)
        daemon.fake.faults.down = DOWN
        await unavailable(daemon.call("sandbox.terminate", sandbox_id="box"))
    async with inside(state_dir) as daemon, trio.open_nursery() as nursery:
        daemon.fake.faults.down = DOWN
        nursery.start_soon(daemon.reconciler.run)
        await trio.testing.wait_all_tasks_blocked(0.01)
        await unavailable(daemon.call("sandbox.terminate", sandbox_id="box"))
        await until_async(lambda: "engine is down" in (daemon.sandboxes.runtimes.note_of(daemon.id_of("other")) or ""))
        view = await daemon.call("sandbox.get", sandbox_id="other")
        assert view.note == "not adopted yet, after the daemon was started: the engine is down: start it"
        assert (await daemon.call("daemon.status")).not_adopted == 1
        daemon.fake.faults.mend()
        await until_stopped(daemon, "box")
        with trio.fail_after(patient(60)):
            assert (await daemon.call("sandbox.exec", sandbox_id="other", command="echo hi")).stdout == b"hi\n"


@pytest.mark.parametrize("used", [False, True])
async def test_an_engine_that_nothing_on_record_needs_is_not_warned_of(
    state_dir: str, source: str, caplog: pytest.LogCaptureFixture, used: bool
) -> None:
    async with inside(state_dir) as daemon, trio.open_nursery() as nursery:
        if used:
            await daemon.image(source)
        daemon.fake.faults.down = DOWN
        nursery.start_soon(daemon.reconciler.run)

        def warnings() -> list[str]:
            return [record.message for record in caplog.records if record.levelno >= logging.WARNING]

        await until_async(lambda: len(warnings()) >= used)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert warnings() == ["no answer yet"] * used
        nursery.cancel_scope.cancel()


async def test_what_nobody_owns_is_looked_for_once_what_was_half_made_is_undone(
    state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or it would be removed by two, and once more when its client has it made after all, under the same id."""
    async with inside(state_dir) as daemon, trio.open_nursery() as nursery:
        image_id = await daemon.image(source)
        daemon.fake.faults.create_delay_s = 1000.0
        nursery.start_soon(lambda: daemon.call("sandbox.create", image_id=image_id, name="box"))
        await daemon.appears()
        nursery.cancel_scope.cancel()
    async with inside(state_dir) as daemon:
        terminate, clean_up, order = daemon.fake.terminate, daemon.fake.clean_up, list[str]()

        async def slowly(*asked: Any) -> None:
            await trio.sleep(0.1)
            await terminate(*asked)
            order.append("undone")

        async def looked(ledger: Any) -> Any:
            order.append("looked")
            return await clean_up(ledger)

        monkeypatch.setattr(daemon.fake, "terminate", slowly)
        monkeypatch.setattr(daemon.fake, "clean_up", looked)
        await daemon.reconciler.run()
        assert (status(daemon, "box"), order) == ("failed", ["undone", "looked"])


async def test_the_end_of_one_that_is_not_adopted_is_ordered(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon:
        await daemon.call("sandbox.create", image_id=await daemon.image(source), name="box")
    async with inside(state_dir) as daemon, trio.open_nursery() as nursery:
        daemon.fake.faults.down = DOWN
        nursery.start_soon(daemon.reconciler.run)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert "is on record" in await unavailable(daemon.call("sandbox.terminate", sandbox_id="box"))
        daemon.fake.faults.mend()
        await until_stopped(daemon, "box")


async def test_the_removal_of_an_image_is_ordered_and_told(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon:
        image_id = await daemon.image(source)
        daemon.fake.faults.down = DOWN
        for _ in range(2):
            message = await unavailable(daemon.call("image.remove", image_id=image_id))
            assert f"the removal of image {image_id} is on record" in message
        assert (await daemon.call("image.get", image_id=image_id)).status == "removing"
        await trio.testing.wait_all_tasks_blocked(0.01)
        daemon.fake.faults.mend()
        image = daemon.core.state.images[image_id]
        with trio.fail_after(patient(60)):
            while image.status != "removed":
                await daemon.core.changed(image_id)
        assert (await daemon.call("image.remove", image_id=image_id)).status == "removed"


async def test_what_fails_for_another_reason_is_tried_again_before_anybody_is_told(
    state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandkeepd.core.retry.RETRY_S", 0.01)
    async with inside(state_dir) as daemon:
        await daemon.call("sandbox.create", image_id=await daemon.image(source), name="box")
        terminate, tries = daemon.fake.terminate, list[int]()

        async def stuck_at_first(*arguments: Any) -> None:
            tries.append(1)
            if len(tries) < 3:
                raise ProviderError("provider_unavailable", "stuck")
            await terminate(*arguments)

        monkeypatch.setattr(daemon.fake, "terminate", stuck_at_first)
        with trio.fail_after(patient(60)):
            assert (await daemon.call("sandbox.terminate", sandbox_id="box")).status == "stopped"


async def test_a_name_of_an_image_does_not_wait_for_the_engine_of_another(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon:
        image_id = await daemon.image(source)
        daemon.fake.faults.down = DOWN
        again = {"source": source, "provider": "fake", "name": "same", "command_id": "again"}
        assert "is like an older one" in await unavailable(daemon.call("image.create", **again))
        with trio.fail_after(patient(30)):
            assert (await daemon.call("image.tag", image_id=image_id, name="other")).names == ["other"]
        daemon.fake.faults.mend()
        with trio.fail_after(patient(30)):
            while len(daemon.core.state.images[image_id].names) < 2:
                await daemon.core.changed(image_id)
        made = await daemon.call("image.create", **again)
        assert (made.image_id, made.names) == (image_id, ["other", "same"])
