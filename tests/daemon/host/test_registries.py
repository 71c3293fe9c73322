"""The registries that others than administrators may use: by the setting, their names and what these resolve to."""

import socket
from typing import Any

import pytest
import trio
from tests.support.expect import refused_async

from sandkeepd.host import registries


class Names(trio.abc.HostnameResolver):
    """Resolves names as the test says, and the rest not at all."""

    def __init__(self, **addresses: list[str]) -> None:
        self._addresses = addresses

    async def getaddrinfo(self, host: Any, *_: Any, **__: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        found = self._addresses.get(name.partition(".")[0])
        if found is None:
            raise socket.gaierror
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in found]

    async def getnameinfo(self, *_: Any) -> Any:
        raise AssertionError


@pytest.mark.parametrize(
    ("image", "setting", "allowed"),
    [
        ("python:3.12", "", True),
        ("docker.io/library/python", "", True),
        ("img_01", "", True),
        ("/a/path", "", True),
        ("public.example/x", "public", True),
        ("public.example/x", "", False),
        ("public.example:5000/x@sha256:" + 64 * "0", "public", True),
        ("127.0.0.1:18745/x", "public", False),
        ("127.1/x", "public", False),
        ("0x7f.1/x", "public", False),
        ("2130706433:80/x", "public", False),
        ("8.8.8.8/x", "public", False),
        ("localhost/x", "public", False),
        ("metadata:80/x", "public", False),
        ("private.example/x", "public", False),
        ("link.example/x", "public", False),
        ("both.example/x", "public", False),
        ("unknown.example/x", "public", False),
        ("private.example:5000/x", "public, private.example:5000", True),
        ("private.example/x", "public, private.example:5000", False),
        ("public.example/x", "docker.io", False),
        ("python:3.12", "private.example", False),
    ],
)
async def test_registries_for_others_than_administrators(
    image: str, setting: str, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDKEEP_REGISTRIES", setting)
    names = Names(
        public=["93.184.216.34", "2606:2800::1"], private=["10.1.2.3"], link=["169.254.169.254"],
        both=["93.184.216.34", "::1"],
    )  # fmt: skip
    trio.socket.set_custom_hostname_resolver(names)
    if allowed:
        await registries.require_listed(image)
        return
    error = await refused_async("permission_denied", registries.require_listed(image))
    assert "SANDKEEP_REGISTRIES" in error.message


_INSIDE = ("7f00:1", "a01:203", "a9fe:a9fe", "c0a8:1", "6440:1")
"""IPv4 addresses of this machine, of private networks, of a cloud's metadata and of a carrier, as IPv6 writes them."""


@pytest.mark.parametrize(
    "form", ["::ffff:{}", "::{}", "::ffff:0:{}", "64:ff9b::{}", "64:ff9b:1::{}", "2002:{}::", "2001::{}", "2001:0:{}::"]
)
@pytest.mark.parametrize("inside", _INSIDE)
def test_addresses_that_lead_to_private_ones_are_not_public(form: str, inside: str) -> None:
    assert not registries.is_public_address(form.format(inside))


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True), ("2606:4700::1111", True), ("::ffff:808:808", True), ("64:ff9b::808:808", True),
        ("2002:808:808::1", True), ("::808:808", False), ("64:ff9b:1::808:808", False), ("2001:0:808:808::1", False),
        ("192.88.99.1", False), ("224.0.0.1", False), ("ff0e::1", False), ("fec0::1", False), ("fe80::1%1", False),
        ("5f00::1", False), ("2001:db8::1", False), ("100::1", False),
    ],
)  # fmt: skip
def test_public_addresses(address: str, public: bool) -> None:
    assert registries.is_public_address(address) is public
