"""Sessions of gVisor sandboxes, whose files can only be read while they run."""

from pathlib import Path
from typing import Any

import pytest
from tests.daemon.providers.gvisor.test_provider import end_kernel
from tests.support.expect import refused, until

pytestmark = pytest.mark.needs("runsc")


@pytest.fixture(scope="module")
def image(client: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(client.image.create(str(tmp_path_factory.mktemp("empty")), provider="gvisor").image_id)


def test_a_suspended_session_is_saved_when_it_is_closed(client: Any, image: str) -> None:
    client.session.ensure(id="suspended", image=image)
    client.sandbox.exec("suspended", "echo mine >file")
    client.sandbox.suspend("suspended")
    assert client.session.close("suspended").status == "terminated"
    assert client.sandbox.exec("suspended", "cat file").stdout == b"mine\n"


def test_a_session_whose_sandbox_died_is_brought_back_from_its_snapshot(client: Any, image: str) -> None:
    session = client.session.ensure(id="died", image=image).session
    client.sandbox.exec("died", "echo 1 >file")
    client.snapshot.create("died")
    client.sandbox.exec("died", "echo 2 >file")
    end_kernel(session.sandbox_id)
    until(lambda: client.session.get("died").status == "failed")
    assert client.sandbox.exec("died", "cat file").stdout == b"1\n"
    assert "are lost" in client.session.get("died").note


def test_an_image_of_another_provider_is_told(client: Any, image: str, tmp_path: Path) -> None:
    """The session would be isolated as the snapshot's sandbox was, and not as the image says."""
    client.session.ensure(id="mixed", image=client.image.create(str(tmp_path), provider="local").image_id)
    client.session.close("mixed")
    assert "fresh" in refused("invalid", client.session.ensure, id="mixed", image=image).message
    fresh = client.session.ensure(id="mixed", image=image, fresh=True).session
    assert fresh.provider == "gvisor"
