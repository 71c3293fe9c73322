"""What broke a daemon when it was attacked: requests at the moment at which something else happens to their object."""

from typing import Any

import pytest
import trio
from tests.support.inside import Inside, inside
from tests.support.patience import patient

from sandkeep.errors import SandkeepError
from sandkeep.protocol.clock import now_us
from sandkeepd.keeper.client import KeeperInstance


class Gate:
    """Holds the calls of a coroutine method until it is opened. `reached` says that there was one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.reached = trio.Event()
        self._opened = trio.Event()
        original = getattr(owner, name)

        async def held(*args: Any, **more: Any) -> Any:
            self.reached.set()
            await self._opened.wait()
            return await original(*args, **more)

        monkeypatch.setattr(owner, name, held)

    def open(self) -> None:
        self._opened.set()


async def running(daemon: Inside, source: str, *, stdin: bool = False, timeout_s: float | None = None) -> str:
    """A sandbox called ``box`` with a process called ``web``."""
    image_id = await daemon.image(source)
    await daemon.call("sandbox.create", image_id=image_id, name="box")
    command = "echo up; exec cat" if stdin else "echo up; exec sleep 60"
    launched = await daemon.call(
        "process.launch", sandbox_id="box", name="web", command=command, stdin=stdin, timeout_s=timeout_s
    )
    return str(launched.process_id)


async def ended(daemon: Inside) -> int | None:
    with trio.fail_after(patient(60)):
        code: int | None = (await daemon.call("process.wait", sandbox_id="box", name="web")).exit_code
    return code


async def test_a_sandbox_that_is_being_adopted_can_be_terminated(
    state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is the last word: it is neither adopted nor lost after it, however long its provider takes to answer."""
    async with inside(state_dir) as daemon:
        await running(daemon, source)
    async with inside(state_dir) as daemon, trio.open_nursery() as nursery:
        gate = Gate(monkeypatch, daemon.fake, "adopt")
        nursery.start_soon(daemon.reconciler.run)
        await gate.reached.wait()
        with trio.fail_after(patient(60)):
            assert (await daemon.call("sandbox.terminate", sandbox_id="box")).status == "stopped"
        gate.open()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert (await daemon.types("box"))[-2:] == ["process.exited", "sandbox.terminated"]
        assert (await daemon.call("process.get", sandbox_id="box", name="web")).exit_code == 137
        assert daemon.sandboxes.runtimes.by_id == {}
        assert await daemon.fake.found() == ([], list(daemon.core.state.images))


async def test_an_end_that_comes_before_the_adoption_does_not_wait_for_it(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon:
        await running(daemon, source)
    async with inside(state_dir) as daemon, trio.open_nursery() as nursery:
        await daemon.sandboxes.termination.end(daemon.id_of(), "requested")
        nursery.start_soon(daemon.reconciler.run)
        with trio.fail_after(patient(60)):
            await daemon.core.settled(daemon.id_of(), lambda: daemon.box().status == "stopped")
        assert (await daemon.types("box"))[-1] == "sandbox.terminated"


async def test_a_process_that_is_being_started_can_be_signalled(
    state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with inside(state_dir) as daemon, trio.open_nursery() as nursery:
        image_id = await daemon.image(source)
        await daemon.call("sandbox.create", image_id=image_id, name="box")
        gate = Gate(monkeypatch, KeeperInstance, "launch")
        nursery.start_soon(lambda: daemon.call("process.launch", sandbox_id="box", name="web", command="sleep 60"))
        await gate.reached.wait()
        nursery.start_soon(lambda: daemon.call("process.signal", sandbox_id="box", name="web", signal="KILL"))
        await trio.testing.wait_all_tasks_blocked(0.01)
        gate.open()
        assert await ended(daemon) == 137
        await daemon.call("sandbox.terminate", sandbox_id="box")


async def test_a_process_that_is_being_adopted_can_be_read_written_to_and_signalled(
    state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with inside(state_dir) as daemon:
        await running(daemon, source, stdin=True)
        assert (await daemon.call("process.read", sandbox_id="box", name="web", wait_s=60)).stdout == b"up\n"
    async with inside(state_dir) as daemon, trio.open_nursery() as nursery:
        gate = Gate(monkeypatch, KeeperInstance, "find")
        nursery.start_soon(daemon.reconciler.run)
        await gate.reached.wait()
        read: list[bytes] = []

        async def follow() -> None:
            offset = len(b"up\n")
            found = await daemon.call("process.read", sandbox_id="box", name="web", stdout_offset=offset, wait_s=60)
            read.append(found.stdout)
            await daemon.call("process.signal", sandbox_id="box", name="web", signal="KILL")

        nursery.start_soon(follow)
        nursery.start_soon(lambda: daemon.call("process.write_stdin", sandbox_id="box", name="web", data=b"more"))
        await trio.testing.wait_all_tasks_blocked(0.01)
        gate.open()
        assert await ended(daemon) == 137
        assert read == [b"more"]
        await daemon.call("sandbox.terminate", sandbox_id="box")


async def test_a_process_that_ends_while_its_signal_is_put_on_record(
    state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with inside(state_dir) as daemon:
        process_id = await running(daemon, source, stdin=True)
        intend = daemon.core.intend

        async def late(*args: Any, **more: Any) -> Any:
            await daemon.call("process.write_stdin", sandbox_id="box", name="web", eof=True)
            await ended(daemon)
            await trio.testing.wait_all_tasks_blocked(0.01)
            return await intend(*args, **more)

        monkeypatch.setattr(daemon.core, "intend", late)
        assert (await daemon.call("process.signal", sandbox_id="box", name="web")).process_id == process_id
        monkeypatch.setattr(daemon.core, "intend", intend)
        await daemon.call("sandbox.terminate", sandbox_id="box")


async def test_a_process_that_its_sandbox_forgot_is_lost(
    state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than running for ever on record: the code inside can write what the keeper's answers are read from."""
    async with inside(state_dir) as daemon:
        await running(daemon, source)
    async with inside(state_dir) as daemon:

        async def unknown(instance: KeeperInstance, process_id: str) -> None:
            return None

        monkeypatch.setattr(KeeperInstance, "find", unknown)
        await daemon.reconciler.run()
        assert await ended(daemon) is None
        assert (await daemon.call("process.get", sandbox_id="box", name="web")).status == "lost"
        await daemon.call("sandbox.terminate", sandbox_id="box")


@pytest.mark.parametrize("method", ["process.list", "event.list", "sandbox.history", "sandbox.get"])
async def test_a_sandbox_that_is_not_there_is_not_found_by_an_administrator_either(state_dir: str, method: str) -> None:
    async with inside(state_dir) as daemon:
        with pytest.raises(SandkeepError) as caught:
            await daemon.call(method, sandbox_id="nope")
        assert caught.value.code == "not_found"


async def test_what_does_not_fit_into_an_event_is_refused_by_its_name(state_dir: str, source: str) -> None:
    """And before it is on record, although each value alone may be as long as that."""
    many = {f"label-{n}": "x" * 1024 for n in range(64)}
    async with inside(state_dir) as daemon:
        image_id = await daemon.image(source)
        head = daemon.core.log.head
        attempts: list[tuple[str, str, dict[str, Any]]] = [
            ("labels", "image.create", {"source": source, "provider": "fake", "labels": many}),
            ("labels", "sandbox.create", {"image_id": image_id, "labels": many}),
            ("env", "sandbox.create", {"image_id": image_id, "env": {"A": "x" * 100_000}, "labels": {"a": "b"}}),
        ]
        for field, method, params in attempts:
            with pytest.raises(SandkeepError) as caught:
                await daemon.call(method, **params)
            assert (caught.value.code, caught.value.data["field"]) == ("invalid", field)
            assert caught.value.message.startswith(f"{field}: ")
        assert daemon.core.log.head == head


async def test_a_process_with_a_long_life_is_read_from_the_log_to_its_end(state_dir: str, source: str) -> None:
    """One that is too old for the view, and was signalled more often than a page of events is long."""
    async with inside(state_dir) as daemon:
        process_id = await running(daemon, source, stdin=True)
        for _ in range(120):
            await daemon.call("process.signal", sandbox_id="box", name="web", signal="CONT")
        await daemon.call("process.write_stdin", sandbox_id="box", name="web", eof=True)
        assert await ended(daemon) == 0
        del daemon.core.state.processes[process_id], daemon.box().named["web"]
        old = await daemon.call("process.get", sandbox_id="box", name=process_id)
        assert (old.status, old.exit_code) == ("exited", 0)
        await daemon.call("sandbox.terminate", sandbox_id="box")


async def test_a_clock_that_was_put_back_does_not_lengthen_a_time_limit(
    state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with inside(state_dir) as daemon:
        await running(daemon, source, timeout_s=0.5)
    yesterday = now_us() - 24 * 3600 * 1_000_000
    monkeypatch.setattr("sandkeepd.sandboxes.process_supervisor.now_us", lambda: yesterday)
    async with inside(state_dir) as daemon:
        await daemon.reconciler.run()
        assert await ended(daemon) == 124
        await daemon.call("sandbox.terminate", sandbox_id="box")


@pytest.mark.parametrize("moment", ["made", "being recorded"])
async def test_an_end_that_is_ordered_when_a_sandbox_was_just_made(
    state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It is the last word: the sandbox does not run after it, on record or elsewhere."""
    async with inside(state_dir) as daemon:
        image_id = await daemon.image(source)
        owner, name = (daemon.fake, "create") if moment == "made" else (daemon.core, "record")
        original = getattr(owner, name)

        async def interrupted(*args: Any, **more: Any) -> Any:
            monkeypatch.setattr(owner, name, original)
            with trio.CancelScope(shield=True):
                made = await original(*args, **more) if moment == "made" else None
                await daemon.sandboxes.termination.end(daemon.id_of(), "requested")
                return made or await original(*args, **more)

        monkeypatch.setattr(owner, name, interrupted)
        with trio.fail_after(patient(60)):
            with pytest.raises(SandkeepError) as caught:
                await daemon.call("sandbox.create", image_id=image_id, name="box")
            assert caught.value.code == "conflict"
            assert (await daemon.call("sandbox.terminate", sandbox_id="box")).status == "stopped"
        assert await daemon.types("box") == [
            "sandbox.create_requested",
            "sandbox.terminate_requested",
            "sandbox.terminated",
        ]
        assert daemon.sandboxes.runtimes.by_id == {}
        assert (await daemon.fake.found())[0] == []
