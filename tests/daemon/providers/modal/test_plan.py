"""Plans of sandboxes at Modal: what is asked for, what the SDK gets of it, and what cannot be."""

from typing import Any

import pytest
from tests.support.expect import refused

from sandkeep.model import SandboxSpec, Volume
from sandkeepd.providers.modal.plan import Plan, decide, options

IMAGE = {"modal_image_id": "im-1"}


def plan(**fields: Any) -> Plan:
    return decide("uid:1000", SandboxSpec(**fields), IMAGE)


def test_the_least() -> None:
    assert options(plan()) == {"timeout": 86_400, "block_network": True}


def test_everything() -> None:
    made = plan(
        network="bridge", cpus=1.5, memory_bytes=512 << 20, max_lifetime_s=100.0,
        labels={"modal.gpu": "H100:2", "modal.region": "us-east,eu-west", "team": "blue"},
    )  # fmt: skip
    assert options(made) == {
        "timeout": 160, "block_network": False, "memory": (512, 512), "cpu": (1.5, 1.5), "gpu": "H100:2",
        "region": ["us-east", "eu-west"],
    }  # fmt: skip


def test_a_tunnel_for_ssh() -> None:
    made = options(plan(network="bridge", labels={"modal.ssh": "1"}))
    assert made == {"timeout": 86_400, "block_network": False, "unencrypted_ports": [22]}


def test_modal_never_ends_one_later_than_it_can() -> None:
    assert options(plan(max_lifetime_s=86_400.0))["timeout"] == 86_400


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"pids": 10}, "pids"),
        ({"disk_bytes": 1 << 30}, "disk_bytes"),
        ({"read_only": True}, "read_only"),
        ({"volumes": [Volume(source="v", target="/v")]}, "volumes"),
        ({"network": "host"}, "network"),
        ({"user": "1000"}, "user"),
    ],
)
def test_what_modal_does_not_have(fields: dict[str, Any], field: str) -> None:
    assert refused("not_supported", plan, **fields).data["field"] == field


@pytest.mark.parametrize(
    "fields",
    [
        {"memory_bytes": 1 << 20},
        {"cpus": 0.01},
        {"max_lifetime_s": 86_401.0},
        {"labels": {"modal.gpu": "A10G; rm"}},
        {"labels": {"modal.region": "US"}},
        {"labels": {"modal.unknown": "x"}},
        {"labels": {"modal.ssh": "yes"}, "network": "bridge"},
        {"labels": {"modal.ssh": "1"}},
    ],
)
def test_what_is_malformed(fields: dict[str, Any]) -> None:
    refused("invalid", plan, **fields)


def test_an_image_of_another_provider() -> None:
    refused("not_supported", decide, "", SandboxSpec(), {"docker_image_id": "sha256:0"})
