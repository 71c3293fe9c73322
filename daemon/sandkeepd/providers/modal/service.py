"""The service, as tasks of trio use it: requests with deadlines, and errors in our words."""

import os
from collections.abc import Callable, Coroutine
from secrets import token_hex
from typing import Any, Final, TypeVar

import trio

from sandkeep.errors import SandkeepError, SetupError
from sandkeep.settings import modal as settings
from sandkeep.system import extras
from sandkeepd.providers.modal import errors
from sandkeepd.providers.modal.loop import Loop
from sandkeepd.providers.modal.sdk import Account, MalformedTokenError, NotConfiguredError, Sdk, config_path

T = TypeVar("T")

ANSWER_S: Final = 45.0
"""Seconds that a request may take, with the SDK's own retries."""

CANCELLED_S: Final = 8.0
"""Seconds for which the answer to a request is waited for that was given up."""

CONNECT_S: Final = 15.0
"""Seconds that the first connection may take."""

AGAIN_S: Final = 1.0
"""Seconds between attempts to reach a service that did not answer."""

AT_ONCE: Final = 16
"""Maximum number of sandboxes whose channels are opened at a time."""

NO_ACCOUNT: Final = "no account of Modal is configured: set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"
MALFORMED: Final = (
    "the token for Modal has a line break or another invalid character: set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET anew"
)


class Service:
    """Modal, by one token. Nothing is imported, read or connected before the first request."""

    def __init__(self, account: Account | None = None) -> None:
        self.loop = Loop()
        self.mark = token_hex(8)
        """Tells the execs of this daemon from those of an earlier one."""
        self.opening = trio.CapacityLimiter(AT_ONCE)
        """Taken to open a channel: those of all sandboxes break at once when the connection does."""
        self._account = account
        self._sdk: Sdk | None = None
        self._connecting = trio.Lock()
        self._failures = 0
        self._failure: SandkeepError | None = None
        """The error of the last attempt to connect that failed, which all get who waited for it."""
        self._probing = trio.Lock()

    @property
    def is_named(self) -> bool:
        """True if the administrator has given the daemon a token."""
        return bool(self._account or settings.TOKEN_ID())

    @property
    def is_configured(self) -> bool:
        """True if there is anything that may have a token."""
        return self.is_named or os.path.exists(config_path())

    async def sdk(self) -> Sdk:
        """Return the client. Raises `not_configured`, `provider_unavailable`."""
        failures = self._failures
        async with self._connecting:
            if self._sdk is None:
                if not self.is_configured:
                    raise SetupError("not_configured", NO_ACCOUNT, setting=errors.SETTING)
                if self._failure is not None and self._failures != failures:  # a second attempt would take as long
                    raise type(self._failure)(self._failure.code, self._failure.message, **self._failure.data)
                try:
                    self._sdk = await self._connect()
                except SandkeepError as error:
                    self._failures, self._failure = self._failures + 1, error
                    raise
        return self._sdk

    async def _connect(self) -> Sdk:
        account, app = self._account or Account(), settings.APP()
        try:
            with trio.fail_after(CONNECT_S):
                return await self.loop.run(lambda: Sdk.connect(account, app))
        except trio.TooSlowError:
            raise errors.too_slow("accept a connection", CONNECT_S) from None
        except ImportError:
            raise extras.not_installed("modal", "the provider modal") from None
        except NotConfiguredError:
            raise SetupError("not_configured", NO_ACCOUNT, setting=errors.SETTING) from None
        except MalformedTokenError:
            raise SetupError("not_configured", MALFORMED, setting=settings.TOKEN_SECRET.name) from None
        except Exception as error:  # noqa: BLE001 - each is raised again, as one of ours
            raise errors.converted(error) from None

    async def call(self, begin: Callable[[Sdk], Coroutine[Any, Any, T]], seconds: float = ANSWER_S) -> T:
        """Run a coroutine of the SDK in its loop, where cancellation cancels it, too.

        Raises `provider_unavailable` when the service does not answer in time, and what `errors` has for its errors.
        """
        sdk = await self.sdk()
        return await self.run(lambda: begin(sdk), seconds)

    async def finish(self, begin: Callable[[Sdk], Coroutine[Any, Any, T]], seconds: float) -> T:
        """Do as `call`, but after a cancellation wait for the answer, for `CANCELLED_S` at most."""
        sdk = await self.sdk()
        call = await self.loop.begin(lambda: begin(sdk))
        try:
            with trio.fail_after(seconds):
                await call.done.wait()
        except trio.TooSlowError:
            call.cancel()
            raise errors.too_slow("answer", seconds) from None
        finally:
            with trio.move_on_after(0 if call.done.is_set() else CANCELLED_S, shield=True):
                await call.done.wait()
            call.cancel()
        try:
            result: T = call.result()
        except Exception as error:  # noqa: BLE001 - as in `run`
            raise errors.converted(error) from None
        return result

    async def run(self, begin: Callable[[], Coroutine[Any, Any, T]], seconds: float = ANSWER_S) -> T:
        """Do as `call` with a coroutine of an object of the SDK's."""
        try:
            with trio.fail_after(seconds):
                return await self.loop.run(begin)
        except trio.TooSlowError:
            raise errors.too_slow("answer", seconds) from None
        except Exception as error:  # noqa: BLE001 - each is raised again, as one of ours
            raise errors.converted(error) from None

    async def recovered(self) -> None:
        """See `Recovering`. Waiting tasks ask one after the other, and not at once."""
        while True:
            await trio.sleep(AGAIN_S)
            async with self._probing:
                try:
                    await self.call(Sdk.hello)
                except SandkeepError as error:
                    if "engine" in error.data:
                        continue
                return  # a refusal is an answer, too

    async def aclose(self) -> None:
        """Close the connections, and end the SDK's loop."""
        sdk, self._sdk = self._sdk, None
        await self.loop.aclose(sdk.close if sdk is not None else None)
