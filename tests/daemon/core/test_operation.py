"""The operation engine, by an operation of its own: images that are made of nothing."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio
from msgspec.structs import replace
from tests.support.expect import refused_async, until_async
from tests.support.inside import Inside, inside

from sandkeep import events, ids
from sandkeep.errors import DaemonError, ProviderError
from sandkeep.events import LOG_STREAM
from sandkeep.protocol.methods import METHODS, ImageCreate
from sandkeep_store.eventlog.log import NewEvent
from sandkeep_store.threads import Threads, working_for
from sandkeep_store.views.images import ImageState
from sandkeepd.contract.caller import no_progress
from sandkeepd.core.access import Request
from sandkeepd.core.call import cannot_give
from sandkeepd.core.core import RUN_AGAIN
from sandkeepd.core.operation import Operation, Order, Upkeep
from sandkeepd.core.peer import Peer
from sandkeepd.sandboxes.images import ImageCreation, ImageHolds

CREATED = events.ImageCreated(digest="sha256:0", size_bytes=0, file_count=0)


class Toy(ImageCreation):
    """An operation that does what the test says."""

    def __init__(self, daemon: Inside, does: Callable[[Order[ImageState]], Awaitable[None]]) -> None:
        super().__init__(daemon.core, ImageHolds())
        self._does = does
        self.undone_of: list[str] = []
        self.threads, self.shares = Threads(1), list[object]()

    async def act(self, order: Order[ImageState]) -> Sequence[NewEvent]:
        await self._does(order)
        return [NewEvent(order.stream, CREATED)]

    async def undo(self, order: Order[ImageState]) -> None:
        self.undone_of.append(order.stream)
        self.shares.append(self.threads.share)


def request_of() -> Request[Any]:
    params = ImageCreate(source="/nothing")
    return Request(
        method=METHODS["image.create"], params=params, sent=params, owner="uid:0", admin=True,
        peer=Peer(uid=0, gid=0), client=None, progress=no_progress, give=cannot_give,
    )  # fmt: skip


def intent(image_id: str) -> NewEvent:
    event = events.ImageCreateRequested(owner="uid:0", provider="fake", kind="directory", source="/nothing")
    return NewEvent(image_id, event, None, 0)


async def kinds(daemon: Inside, image_id: str) -> list[str]:
    return [fact.type for fact in await daemon.core.log.read(0, 100, stream=image_id)]


async def test_an_outcome_is_recorded_and_answered(state_dir: str) -> None:
    async with inside(state_dir) as daemon:
        seen = []

        async def does(order: Order[ImageState]) -> None:
            seen.append((order.subject.status, await kinds(daemon, order.stream)))

        image_id = ids.new_id(ids.IMAGE)
        answer = await Toy(daemon, does).run(intent(image_id), request_of())
        assert (answer.image_id, answer.status) == (image_id, "ready")
        assert seen == [("creating", ["image.create_requested"])], "the intent was durable before"
        assert await kinds(daemon, image_id) == ["image.create_requested", "image.created"]


@pytest.mark.parametrize(
    ("failure", "code"),
    [(ProviderError("provider_unavailable", "no"), "provider_unavailable"), (KeyError(1), "internal")],
)
async def test_a_failure_is_recorded_whatever_it_is(state_dir: str, failure: Exception, code: Any) -> None:
    async with inside(state_dir) as daemon:
        held: list[str] = []

        async def does(order: Order[ImageState]) -> None:
            order.resources.callback(held.clear)
            held.append(order.stream)
            raise failure

        toy, image_id = Toy(daemon, does), ids.new_id(ids.IMAGE)
        error = await refused_async(code, toy.run(intent(image_id), request_of()))
        assert (error.data["image_id"], held) == (image_id, [])
        assert await kinds(daemon, image_id) == ["image.create_requested", "image.create_failed"]
        first = (await daemon.core.log.read(0, 1, stream=image_id))[0]
        assert (await refused_async(code, toy.again(request_of(), first))).message == error.message


async def test_an_outcome_that_the_log_does_not_take_is_a_failure(
    state_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def does(_: Order[ImageState]) -> None:
        pass

    async with inside(state_dir) as daemon:
        monkeypatch.setattr("tests.daemon.core.test_operation.CREATED", replace(CREATED, details={"x": "x" * 100_000}))
        image_id = ids.new_id(ids.IMAGE)
        await refused_async("invalid", Toy(daemon, does).run(intent(image_id), request_of()))
        assert await kinds(daemon, image_id) == ["image.create_requested", "image.create_failed"]


async def test_what_cannot_be_let_go_of_keeps_no_failure_from_being_told(state_dir: str) -> None:
    def no_way() -> None:
        raise KeyError("let go")

    async def does(order: Order[ImageState]) -> None:
        order.resources.callback(no_way)
        raise ProviderError("provider_unavailable", "no")

    async with inside(state_dir) as daemon:
        await refused_async("provider_unavailable", Toy(daemon, does).run(intent(ids.new_id(ids.IMAGE)), request_of()))


async def test_an_image_that_is_being_removed_stands_for_no_other(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon:
        first = await daemon.image(source)
        with daemon.images.holds.leaving(first):
            assert await daemon.image(source) != first
        assert await daemon.image(source) == first


async def test_it_goes_on_when_its_caller_has_gone_and_lets_go_when_it_is_on_record(state_dir: str) -> None:
    async with inside(state_dir) as daemon:
        begun, go, held = trio.Event(), trio.Event(), ["it"]

        async def does(order: Order[ImageState]) -> None:
            order.resources.callback(held.clear)
            begun.set()
            with order.abandoned:
                await trio.sleep_forever()
            await go.wait()

        toy, image_id = Toy(daemon, does), ids.new_id(ids.IMAGE)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(toy.run, intent(image_id), request_of())
            await begun.wait()
            nursery.cancel_scope.cancel()
        assert (daemon.core.state.images[image_id].status, held) == ("creating", ["it"])
        go.set()
        first = (await daemon.core.log.read(0, 1, stream=image_id))[0]
        answer = await toy.again(request_of(), first)
        assert answer.status == "ready"
        await until_async(lambda: held == [])


async def test_what_a_dead_daemon_had_begun_is_undone_and_begun_anew(state_dir: str) -> None:
    image_id = ids.new_id(ids.IMAGE)
    async with inside(state_dir) as daemon:

        async def hangs(_: Order[ImageState]) -> None:
            await trio.sleep_forever()

        await Toy(daemon, hangs).begin(intent(image_id), request_of().meta)
    async with inside(state_dir) as daemon:

        async def does(_: Order[ImageState]) -> None:
            pass

        toy = Toy(daemon, does)
        toy.announce()
        later = ids.new_id(ids.IMAGE)
        await toy.begin(intent(later), request_of().meta)  # what clients begin is not for it
        await toy.recover()
        assert toy.undone_of == [image_id]
        with working_for("uid:0"):  # whose order it was: the daemon's own threads are for its own work
            assert toy.shares == [toy.threads.share]
        assert await kinds(daemon, image_id) == ["image.create_requested", "image.create_failed"]
        first = (await daemon.core.log.read(0, 1, stream=image_id))[0]
        assert await toy.again(request_of(), first) is RUN_AGAIN
        assert (await toy.answer(request_of(), later)).status == "ready"


def operations(kind: type[Operation[Any, Any]] = Operation) -> list[type[Operation[Any, Any]]]:
    below = [kind, *(each for child in kind.__subclasses__() for each in operations(child))]
    ours = [each for each in below if "method" in vars(each) and each.__module__.startswith("sandkeepd.")]
    return [each for each in ours if not issubclass(each, Upkeep)]


def test_each_is_declared_for_a_method_that_has_an_intent() -> None:
    answers = {(operation.method, operation.again) for operation in operations()}
    declared = {method for method, _ in answers}
    assert len(answers) == len(declared), "a command given again has one answer, whatever carried it out"
    assert all(METHODS[name].intent is not None for name in declared)


class RollingBack(Toy):
    """One that has something to roll back, and finds what is on record by then."""

    def __init__(self, daemon: Inside, does: Callable[[Order[ImageState]], Awaitable[None]]) -> None:
        super().__init__(daemon, does)
        self._daemon = daemon
        self.on_record: list[list[str]] = []

    async def roll_back(self, order: Order[ImageState]) -> None:
        self.on_record.append(await kinds(self._daemon, order.stream))
        raise KeyError("an error of it is logged, and the order's own is answered")


@pytest.mark.parametrize("refused_by", ["act", "log"])
async def test_a_failed_order_is_rolled_back_once_before_its_failure_is_on_record(
    state_dir: str, monkeypatch: pytest.MonkeyPatch, refused_by: str
) -> None:
    async def does(_: Order[ImageState]) -> None:
        if refused_by == "act":
            raise ProviderError("provider_unavailable", "no")

    async with inside(state_dir) as daemon:
        if refused_by == "log":
            too_large = replace(CREATED, details={"x": "x" * 100_000})
            monkeypatch.setattr("tests.daemon.core.test_operation.CREATED", too_large)
        toy, image_id = RollingBack(daemon, does), ids.new_id(ids.IMAGE)
        await refused_async(
            "provider_unavailable" if refused_by == "act" else "invalid", toy.run(intent(image_id), request_of())
        )
        assert toy.on_record == [["image.create_requested"]]
        assert await kinds(daemon, image_id) == ["image.create_requested", "image.create_failed"]


async def test_upkeep_that_fails_is_told_stays_on_record_and_is_tried_again(
    state_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(position: int) -> Any:
        raise DaemonError("storage_unavailable", f"the disk is full at {position}")

    async with inside(state_dir) as daemon:
        image_id = ids.new_id(ids.IMAGE)
        await daemon.core.record([intent(image_id), NewEvent(image_id, CREATED)], None)
        position = (await daemon.core.log.read(0, 1, stream=image_id))[0].position
        redaction = daemon.retention.redaction
        with monkeypatch.context() as patch:
            patch.setattr(redaction._redaction, "carry_out", fails)
            error = await refused_async("storage_unavailable", daemon.call("store.redact", position=position))
            assert error.message == f"the disk is full at {position}"
        assert daemon.core.state.log.redacting == [position]
        async with trio.open_nursery() as both:
            both.start_soon(daemon.retention.recover)
            await trio.testing.wait_all_tasks_blocked()
            both.start_soon(daemon.retention.recover)  # it finds the same, and has its turn when that is done
        assert daemon.core.state.log.redacting == []
        assert await kinds(daemon, LOG_STREAM) == ["log.redact_requested", "log.redacted"]
