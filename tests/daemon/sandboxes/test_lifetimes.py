"""Lifetimes of sandboxes that cost money while they stand: by a setting, on record, and at the service itself."""

import datetime as dt
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon, daemon_in
from tests.support.expect import refused
from tests.support.kubernetes.clients import Clients
from tests.support.kubernetes.images import BUSYBOX, TOOLS
from tests.support.kubernetes.reconcile import seconds_until

from sandkeep.errors import SetupError
from sandkeep.model import Sandbox
from sandkeep.settings.daemon import REMOTE_LIFETIME, SESSION_KEEP
from sandkeep_store.views.sessions import SAVING_S
from sandkeepd.providers.kubernetes.manifests import GRACE_S

REMOTE = [
    pytest.param("kubernetes", marks=pytest.mark.needs("root")),
    pytest.param("modal", marks=[pytest.mark.needs("root"), pytest.mark.needs("modal")]),
]


@pytest.fixture(scope="module", params=REMOTE)
def remote(
    request: pytest.FixtureRequest, places: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, RunningDaemon, str]]:
    """A provider, a daemon that has it, and an image."""
    service: Any = request.getfixturevalue(request.param)
    found = {"KUBECONFIG": str(service.kubeconfig)} if request.param == "kubernetes" else service.environment
    with daemon_in(places, **found, SANDKEEP_REMOTE_LIFETIME="2h") as daemon:
        daemon.start()
        with daemon.connect() as client:
            if request.param == "kubernetes":
                image_id = client.image.create(BUSYBOX, provider="kubernetes").image_id
            else:
                source = tmp_path_factory.mktemp("source")
                Path(source, "file").write_text("content\n")
                image_id = client.image.create(str(source), provider="modal", base=TOOLS).image_id
        yield request.param, daemon, image_id


def life_s(found: Any) -> float:
    """The seconds from a sandbox's creation, or a session's start, to its end."""
    began = found.created_at if isinstance(found, Sandbox) else found.started_at
    return (dt.datetime.fromisoformat(found.expires_at) - dt.datetime.fromisoformat(began)).total_seconds()


def left_s(provider: str, sandbox: Sandbox, service: Any) -> float:
    """The seconds after which the service ends a sandbox by itself, with or without a daemon."""
    if provider == "modal":
        [there] = [each for each in service.sandboxes() if each["id"] == sandbox.modal_sandbox_id]
        return float(there["definition"]["timeout_secs"])
    labels = {"label_selector": f"sandbox.users.io/sandkeep-sandbox={sandbox.sandbox_id}"}
    found = Clients(service).custom.list_namespaced_custom_object(
        "agents.x-k8s.io", "v1beta1", "default", "sandboxes", **labels
    )
    [there] = found["items"]
    left = seconds_until(there["spec"]["shutdownTime"])
    assert left is not None
    return left


@pytest.mark.parametrize(("asked", "expected"), [(None, 7200), (86_000, 86_000)])
def test_a_sandbox_has_an_end_that_needs_no_daemon(
    remote: tuple[str, RunningDaemon, str], request: pytest.FixtureRequest, asked: float | None, expected: float
) -> None:
    provider, daemon, image_id = remote
    with daemon.connect() as client:
        sandbox = client.sandbox.create(image_id, max_lifetime_s=asked)
        try:
            assert (sandbox.spec.max_lifetime_s, life_s(sandbox)) == (expected, expected)
            assert 0 < left_s(provider, sandbox, request.getfixturevalue(provider)) <= expected + GRACE_S
            for command, columns in ((("ls",), (2, 3)), (("stats", "--once"), (-2, -1))):
                [heading, row] = words(daemon, *command)
                assert [heading[number] for number in columns] == ["AGE", "LEFT"]
                assert row[columns[0]].endswith(("s", "m"))
                assert row[columns[1]] in ("1h", "2h", "23h")
        finally:
            client.sandbox.terminate(sandbox.sandbox_id)
        assert client.sandbox.get(sandbox.sandbox_id).expires_at is None


def words(daemon: RunningDaemon, *command: str) -> list[list[str]]:
    return [line.split() for line in daemon.cli(*command).stdout.decode().splitlines()]


@pytest.mark.parametrize(("asked", "expected"), [(None, 7200), (600, 600)])
def test_a_session_ends_before_its_sandbox_does(
    remote: tuple[str, RunningDaemon, str], request: pytest.FixtureRequest, asked: float | None, expected: float
) -> None:
    provider, daemon, image_id = remote
    with daemon.connect() as client:
        mode = "k8s" if provider == "kubernetes" else None
        session = client.session.ensure(image=image_id, mode=mode, max_lifetime_s=asked)
        session = getattr(session, "session", session)
        try:
            sandbox = client.sandbox.get(session.sandbox_id)
            assert life_s(session) == expected
            assert sandbox.expires_at == session.expires_at
            end_s = min(expected + SESSION_KEEP({}) + SAVING_S, 86_400 if provider == "modal" else math.inf)
            assert sandbox.spec.max_lifetime_s == end_s
            assert expected < left_s(provider, sandbox, request.getfixturevalue(provider)) <= end_s + GRACE_S
        finally:
            client.session.close(session.session_id)


@pytest.mark.needs("bwrap")
def test_sandboxes_on_this_machine_have_none(shared_daemon: RunningDaemon, client: Any, image: str) -> None:
    sandbox = client.sandbox.create(image)
    assert (sandbox.spec.max_lifetime_s, sandbox.expires_at) == (None, None)
    heading = words(shared_daemon, "ls")[0]
    assert ("AGE" in heading, "LEFT" in heading) == (True, False)
    client.sandbox.create(image, max_lifetime_s=7200)
    heading, *rows = words(shared_daemon, "ls")
    assert "LEFT" in heading
    assert sum("1h" in row for row in rows) == 1


def test_the_setting_is_an_age() -> None:
    assert REMOTE_LIFETIME({}) == 86_400
    assert REMOTE_LIFETIME({REMOTE_LIFETIME.name: "90m"}) == 5400
    assert REMOTE_LIFETIME({REMOTE_LIFETIME.name: "unlimited"}) is None
    for wrong in ("1s", "soon", "24"):
        error = refused("not_configured", REMOTE_LIFETIME, {REMOTE_LIFETIME.name: wrong})
        assert isinstance(error, SetupError)
