"""The registries of which those who are no administrators may name images.

The engine asks a registry from the host's network, follows it to where it sends for tokens and content, and waits for
it: somebody's own could fill the engine's memory, or hold up everybody's pulls.
"""

import re
import socket
from ipaddress import IPv4Address, IPv6Network, ip_address, ip_network
from typing import Final

import trio

from sandkeep.errors import CallerError
from sandkeep.settings.docker import PUBLIC, REGISTRIES
from sandkeepd.contract import image_references

LOOKUP_S: Final = 10.0

_NAME: Final = re.compile(r".+\.[A-Za-z][A-Za-z0-9-]*")
"""A name of DNS. The last part of an address begins with a digit in all its forms, such as ``127.1`` and ``0x7f.1``."""

_UNICAST: Final = IPv6Network("2000::/3")
"""Whatever is public of IPv6; beyond it are loopback, local and deprecated forms, some with an IPv4 address inside."""

_NAT64: Final = IPv6Network("64:ff9b::/96")
_TO_RELAYS: Final = ip_network("192.88.99.0/24")
"""The anycast address of 6to4 relays (RFC 7526), which anybody's network may answer."""


async def require_listed(image: str) -> None:
    """Raise `permission_denied` for a reference to a registry that is for administrators only."""
    try:
        registry = image_references.parse(image, "image").domain
    except CallerError:
        return  # no reference: whoever makes an image of it says so
    allowed = REGISTRIES()
    if registry in allowed or (PUBLIC in allowed and await _is_public(registry)):
        return
    message = f"image: only administrators may use the registry {registry}: one can add it to {REGISTRIES.name}"
    raise CallerError("permission_denied", message, field="image")


async def _is_public(registry: str) -> bool:
    """Tell if all addresses of a registry are public; one that is not found is not."""
    if registry == image_references.HUB:
        return True
    host = registry.partition(":")[0]
    if not _NAME.fullmatch(host):
        return False
    found: list[str] = []
    with trio.move_on_after(LOOKUP_S):
        try:
            found = [str(each[4][0]) for each in await trio.socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
        except (OSError, UnicodeError):
            return False
    return bool(found) and all(map(is_public_address, found))


def is_public_address(text: str) -> bool:
    """Tell if an address is one of the internet's. An IPv6 address that a gateway or tunnel translates to an IPv4
    address (mapped, NAT64, 6to4) is judged by that one. Local prefixes of NAT64 are not public, and one that an
    operator has chosen from its own addresses cannot be told from those.
    """
    address = ip_address(text)
    if isinstance(address, IPv4Address):
        return address.is_global and not address.is_multicast and address not in _TO_RELAYS
    inner = address.ipv4_mapped or address.sixtofour
    if address in _NAT64:
        inner = IPv4Address(address.packed[-4:])
    if inner is not None:
        return is_public_address(str(inner))
    return address in _UNICAST and address.is_global and address.teredo is None
