"""The clients on trio, on asyncio and for threads behind one face, so that one suite runs over all three.

The body of a test is a coroutine function of a client, and is run in the thread that calls, on the client's own event
loop. With the blocking client nothing in it ever waits for anything but the calls themselves.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import trio

import sandkeep
from sandkeep import aio, blocking
from sandkeep.errors import SandkeepError

Body = Callable[[Any], Coroutine[Any, Any, Any]]
JOIN_S = 120.0


class Kind:
    """One of the clients. `run` connects, and returns what the body does; `together` carries out several at once."""

    name: str

    def run(self, path: str, body: Body, **options: Any) -> Any:
        raise NotImplementedError

    async def together(self, *works: Callable[[], Awaitable[Any]]) -> list[Any]:
        """Carry all out at once; return their values, or raise the first error."""
        raise NotImplementedError


class OnTrio(Kind):
    name = "trio"

    def run(self, path: str, body: Body, **options: Any) -> Any:
        async def main() -> Any:
            async with sandkeep.connect(path, **options) as client:
                return await body(client)

        return trio.run(main)

    async def together(self, *works: Callable[[], Awaitable[Any]]) -> list[Any]:
        values: list[Any] = [None] * len(works)

        async def one(number: int) -> None:
            try:
                values[number] = await works[number]()
            except Exception as error:
                values[number] = error

        async with trio.open_nursery() as nursery:
            for number in range(len(works)):
                nursery.start_soon(one, number)
        return _values(values)


class OnAsyncio(Kind):
    name = "asyncio"

    def run(self, path: str, body: Body, **options: Any) -> Any:
        async def main() -> Any:
            async with aio.connect(path, **options) as client:
                return await body(client)

        return asyncio.run(main())

    async def together(self, *works: Callable[[], Awaitable[Any]]) -> list[Any]:
        return _values(await asyncio.gather(*(work() for work in works), return_exceptions=True))


class OnThreads(Kind):
    name = "threads"

    def run(self, path: str, body: Body, **options: Any) -> Any:
        with blocking.connect(path, **options) as client:
            return drive(body(Awaited(client)))

    async def together(self, *works: Callable[[], Awaitable[Any]]) -> list[Any]:
        values: list[Any] = [None] * len(works)

        def one(number: int) -> None:
            try:
                values[number] = drive(works[number]())
            except BaseException as error:
                values[number] = error

        threads = [threading.Thread(target=one, args=(number,)) for number in range(len(works))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(JOIN_S)
            assert not thread.is_alive()
        return _values(values)


KINDS: tuple[Kind, ...] = (OnTrio(), OnAsyncio(), OnThreads())


def _values(values: list[Any]) -> list[Any]:
    for value in values:
        if isinstance(value, BaseException):
            raise value
    return values


def drive(work: Awaitable[Any]) -> Any:
    """Run a coroutine that never waits for an event loop to its end."""
    try:
        work.__await__().send(None)  # type: ignore[attr-defined]
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits for an event loop")


async def pause(kind: Kind) -> None:
    """Let others go on."""
    if kind.name == "trio":
        await trio.sleep(0.01)
    elif kind.name == "asyncio":
        await asyncio.sleep(0.01)
    else:
        time.sleep(0.01)


async def caught(work: Awaitable[Any]) -> SandkeepError:
    """Return the error that something awaited raises."""
    try:
        await work
    except SandkeepError as error:
        return error
    raise AssertionError("it raised no error")


class Awaited:
    """A blocking client as those on event loops look: methods are awaited, iterators and contexts are asynchronous."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if name == "close" or not callable(value):
            return value if name in ("close", "token") else Awaited(value)
        return lambda *args, **kwargs: Later(lambda: value(*args, **kwargs))

    def __dir__(self) -> list[str]:
        return dir(self._target)


class Later:
    """The result of a blocking call: to be awaited, iterated over, or entered."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._made: Any = None

    def __await__(self) -> Iterator[Any]:
        return self._call()
        yield  # it is a generator, that never waits

    def _value(self) -> Any:
        if self._made is None:
            self._made = self._call()
        return self._made

    @property
    def token(self) -> str:
        """The position of an iterator over events."""
        return str(self._value().token)

    def __aiter__(self) -> "Later":
        self._iterator = iter(self._value())
        return self

    async def __anext__(self) -> Any:
        iterator = iter(self._value())
        try:
            return next(iterator)
        except StopIteration:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Any:
        return Awaited(self._value().__enter__())

    async def __aexit__(self, *error: object) -> None:
        self._value().__exit__(*error)


def daemon_of(client: Any) -> Any:
    """Return the daemon as a client of any kind sees it, with its patience and its functions."""
    return getattr(client, "_target", client)._daemon
