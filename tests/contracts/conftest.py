"""The doubles of services as their clients see them. Clients are imported where needed: that takes seconds."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.kubernetes.clients import Clients
    from tests.support.kubernetes.cluster import Cluster
    from tests.support.kubernetes.widgets import Widgets
    from tests.support.modal.boxes import Boxes


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Root file systems of images by their references."""
    from tests.support.kubernetes import images

    return images.unpack(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Cluster]":
    """A cluster without images, controllers and custom resources, but for widgets."""
    from tests.support.kubernetes.clients import Clients
    from tests.support.kubernetes.cluster import start_cluster
    from tests.support.kubernetes.widgets import definition

    with start_cluster(tmp_path_factory.mktemp("cluster"), crds={}) as cluster:
        with Clients(cluster) as clients:
            clients.extensions.create_custom_resource_definition(definition())
        yield cluster


@pytest.fixture
def clients(cluster: "Cluster") -> "Iterator[Clients]":
    """The official client; faults that were injected go with it."""
    from tests.support.kubernetes.clients import Clients

    with Clients(cluster) as clients:
        yield clients
    cluster.control("DELETE", "faults")


@pytest.fixture
def namespace(clients: "Clients") -> str:
    return str(clients.core.create_namespace({"metadata": {"generateName": "test-"}}).metadata.name)


@pytest.fixture
def widgets(clients: "Clients", namespace: str) -> "Widgets":
    from tests.support.kubernetes.widgets import Widgets

    return Widgets(clients, namespace)


@pytest.fixture(scope="module")
def sdk(modal: Any) -> Iterator[Any]:
    """Modal's SDK."""
    from tests.support.modal.sdk import open_sdk

    with open_sdk(modal) as sdk:
        yield sdk


@pytest.fixture(scope="module")
def app(sdk: Any) -> Any:
    from tests.support.modal.boxes import new_app

    return new_app(sdk)


@pytest.fixture(params=[pytest.param("0", id="first"), pytest.param("1", id="second")])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The version of the sandboxes that the SDK makes."""
    monkeypatch.setenv("MODAL_SANDBOX_V2", request.param)
    return str(request.param)


@pytest.fixture
def boxes(sdk: Any, app: Any, version: str) -> "Iterator[Boxes]":
    """Makes sandboxes of either version, which end with the test."""
    from tests.support.modal.boxes import boxes_of

    with boxes_of(sdk, app) as boxes:
        yield boxes
