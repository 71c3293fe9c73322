"""A cluster, the double or a real one, and namespaces of it that go with the test."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException
from tests.support.expect import until
from tests.support.kubernetes import live
from tests.support.kubernetes.clients import Clients
from tests.support.kubernetes.widgets import GROUP, PLURAL, Widgets, definition


@pytest.fixture(scope="package")
def connected(kubernetes: Any) -> Iterator[Clients]:
    with Clients(kubernetes) as clients:
        yield clients


@pytest.fixture(scope="package")
def defined(connected: Clients) -> Iterator[None]:
    """A kind of custom objects."""
    name = f"{PLURAL}.{GROUP}"
    made = connected.extensions.create_custom_resource_definition(definition())
    until(lambda: any(one.type == "Established" and one.status == "True" for one in conditions(connected, name)))
    assert made.metadata.name == name
    yield
    connected.extensions.delete_custom_resource_definition(name)


def conditions(clients: Clients, name: str) -> list[Any]:
    return clients.extensions.read_custom_resource_definition(name).status.conditions or []


@pytest.fixture
def clients(kubernetes: Any, defined: None) -> Iterator[Clients]:
    with Clients(kubernetes) as clients:
        yield clients


def new_namespace(clients: Clients) -> str:
    name = str(clients.core.create_namespace({"metadata": {"generateName": "sandkeep-test-"}}).metadata.name)
    if live.is_wanted():  # where pods need an account, which a controller makes
        until(lambda: clients.core.list_namespaced_service_account(name).items)
    return name


@pytest.fixture
def namespace(clients: Clients) -> Iterator[str]:
    name = new_namespace(clients)
    yield name
    with suppress(ApiException):
        clients.core.delete_namespace(name)


@pytest.fixture
def widgets(clients: Clients, namespace: str) -> Iterator[Widgets]:
    made = Widgets(clients, namespace)
    yield made
    for name in made.names():  # what a test that failed has left would hold the namespace, and the kind
        with suppress(ApiException):
            made.patch(name, {"metadata": {"finalizers": None}})
