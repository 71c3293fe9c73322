"""The provider of Modal on our double of the service."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.conftest import no_progress
from tests.support.kubernetes.images import TOOLS
from tests.support.modal.accounts import account_at, leaving_no_descriptors
from tests.support.modal.service import Modal

from sandkeep.ids import IMAGE, SANDBOX, new_id
from sandkeep.model import SandboxSpec
from sandkeepd.contract.caller import Caller
from sandkeepd.contract.images import ImageRequest
from sandkeepd.providers.modal.provider import ModalProvider, open_modal
from sandkeepd.providers.modal.sandbox import ModalInstance
from sandkeepd.providers.modal.sdk import Account

CALLER = Caller(uid=0, gid=0)


class House:
    """A provider, and what tests do with it."""

    def __init__(self, provider: ModalProvider, service: Modal) -> None:
        self.provider = provider
        self.service = service
        self.plans: dict[str, dict[str, Any]] = {}

    async def image(self, reference: str = TOOLS) -> dict[str, Any]:
        """Return the details of an image of a reference."""
        wanted = ImageRequest(kind="reference", source=reference)
        return (await self.provider.images.make(new_id(IMAGE), wanted, CALLER, no_progress)).details

    async def box(self, *, secrets: dict[str, str] | None = None, **fields: Any) -> ModalInstance:
        """Make a sandbox."""
        spec = SandboxSpec(**fields)
        return await self.make(new_id(SANDBOX), spec, secrets or {})

    async def make(self, sandbox_id: str, spec: SandboxSpec, secrets: dict[str, str]) -> ModalInstance:
        """Make a sandbox of that id."""
        details = await self.image()
        plan = self.provider.plan(sandbox_id, "img_1", spec, CALLER, [], details=details, owner="uid:1000")
        self.plans[sandbox_id] = plan
        return await self.provider.create(sandbox_id, "img_1", spec, secrets, plan)

    async def adopt(self, instance: ModalInstance) -> Any:
        """Adopt a sandbox of an earlier provider."""
        plan = {"owner": "", "modal_image_id": "", "network": "none", "memory_bytes": None, "cpus": None,
                "lifetime_s": None}  # fmt: skip
        return await self.provider.adopt(
            instance.sandbox_id, SandboxSpec(), plan, instance.isolation, dict(instance.handle)
        )

    def at_modal(self, instance: ModalInstance) -> dict[str, Any]:
        """Return what the service has of a sandbox."""
        (found,) = (each for each in self.service.sandboxes() if each["id"] == instance.handle["modal_sandbox_id"])
        return found


Opener = Callable[..., AbstractAsyncContextManager[House]]


@pytest.fixture(scope="module")
def nothing_is_left() -> Iterator[None]:
    """Check at the end of a module that nothing of the SDK is left in this process."""
    with leaving_no_descriptors():
        yield


@pytest.fixture
def opener(modal: Modal, tmp_path: Path) -> Iterator[Opener]:
    """Opens providers of one log, one after the other. At the end there are no sandboxes of it, and no faults."""
    log_id = new_id("log")

    @asynccontextmanager
    async def opened(account: Account | None = None, log: str = log_id) -> AsyncIterator[House]:
        async with open_modal(str(tmp_path / "state"), log_id=log, account=account or account_at(modal)) as provider:
            yield House(provider, modal)

    yield opened
    modal.clear_faults()
    ours = (each for each in modal.sandboxes() if each["tags"].get("sandkeep-log") == log_id)
    assert [each["id"] for each in ours if not each["ended"]] == []


@pytest.fixture
async def house(opener: Opener) -> AsyncIterator[House]:
    """A provider; its sandboxes end with the test."""
    async with opener() as made:
        yield made
        made.service.clear_faults()
        for sandbox_id in made.plans:
            await made.provider.terminate(sandbox_id, {}, {})
