"""The registries of which an API key may name images: the engine asks them from the host's network."""

import re
import socket
from ipaddress import ip_address
from typing import Final

import trio

from sandkeep.errors import CallerError
from sandkeep.settings.docker import KEY_REGISTRIES, PUBLIC
from sandkeepd.contract import image_references

LOOKUP_S: Final = 10.0

_NAME: Final = re.compile(r".+\.[A-Za-z][A-Za-z0-9-]*")
"""A name of DNS. The last part of an address begins with a digit in all its forms, such as ``127.1`` and ``0x7f.1``."""


async def require_public(image: str) -> None:
    """Raise `permission_denied` for a reference to a registry that is not for API keys."""
    try:
        registry = image_references.parse(image, "image").domain
    except CallerError:
        return  # no reference: whoever makes an image of it says so
    allowed = KEY_REGISTRIES()
    if registry in allowed or (PUBLIC in allowed and await _is_public(registry)):
        return
    message = (
        f"image: the registry {registry} is not for API keys: an administrator can add it to {KEY_REGISTRIES.name}"
    )
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
    return bool(found) and all(ip_address(address).is_global for address in found)
