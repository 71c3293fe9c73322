"""One daemon with a gateway for all tests of a file."""

from collections.abc import Iterator

import pytest
from tests.support.gateway import Gateway, gateway_in


@pytest.fixture(scope="module")
def gateway(places: str) -> Iterator[Gateway]:
    with gateway_in(places) as gateway:
        yield gateway
        with gateway.daemon.connect() as client:
            assert client.daemon.status().healthy
        assert "defect" not in gateway.daemon.said()
