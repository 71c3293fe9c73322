"""Clients of the doubles of Kubernetes and Modal."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.kubernetes.clients import Clients
    from tests.support.kubernetes.cluster import Cluster
    from tests.support.kubernetes.widgets import Widgets
    from tests.support.modal.boxes import Boxes
    from tests.support.modal.service import Modal

# -- Kubernetes -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Cluster]":
    """The cluster of a file: without custom resources but widgets, unless the file has another."""
    from tests.support.kubernetes.clients import Clients
    from tests.support.kubernetes.cluster import start_cluster
    from tests.support.kubernetes.widgets import definition

    with start_cluster(tmp_path_factory.mktemp("cluster"), crds={}) as cluster:
        with Clients(cluster) as clients:
            clients.extensions.create_custom_resource_definition(definition())
        yield cluster


@pytest.fixture
def clients(cluster: "Cluster") -> "Iterator[Clients]":
    """The official clients of that cluster. Its faults end with the test."""
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


# -- Modal ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sdk(modal: "Modal") -> Iterator[Any]:
    from tests.support.modal.sdk import open_sdk

    with open_sdk(modal) as sdk:
        yield sdk


@pytest.fixture(scope="module")
def app(sdk: Any) -> Any:
    from tests.support.modal.boxes import new_app

    return new_app(sdk)


@pytest.fixture(params=[pytest.param("0", id="first"), pytest.param("1", id="second")])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The version of sandboxes that the SDK creates."""
    monkeypatch.setenv("MODAL_SANDBOX_V2", request.param)
    return str(request.param)


@pytest.fixture
def boxes(sdk: Any, app: Any, version: str, modal: "Modal") -> "Iterator[Boxes]":
    """Creates sandboxes of both versions. Faults end with the test."""
    from tests.support.modal.boxes import boxes_of

    with boxes_of(sdk, app) as boxes:
        yield boxes
        modal.clear_faults()
