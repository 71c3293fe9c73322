"""The settings of `sandkeep.compat.astraforge`, with the names and defaults of AstraForge's toolkit. See `settings` for
the manner.
"""

from typing import Final
from urllib.parse import urlsplit

from sandkeep.settings.daemon import Setting, optional, parse_seconds

UNIX: Final = "unix:"


def _gateway(text: str) -> str:
    """Return the address without its last slash. Raises ValueError."""
    parts = urlsplit(text)
    is_url = parts.scheme in ("http", "https") and parts.hostname and not parts.username
    if parts.query or parts.fragment or not (is_url or text.startswith(f"{UNIX}/")):
        raise ValueError("give http://HOST:PORT/api, https://HOST/api or unix:/PATH")
    _ = parts.port  # raises ValueError for one that is no number
    return text.rstrip("/")


API_URL = Setting(
    "ASTRA_FORGE_API_URL",
    _gateway,
    "http://127.0.0.1:8000/api",
    "The HTTP gateway that `sandkeep.compat.astraforge` uses: `http://HOST:PORT/api`, `https://HOST/api`, or "
    "`unix:/PATH`.",
)
API_KEY = optional(
    "ASTRA_FORGE_API_KEY",
    str.strip,
    "The API key that `sandkeep.compat.astraforge` sends.",
)
READY_TIMEOUT = Setting(
    "ASTRA_FORGE_SANDBOX_READY_TIMEOUT",
    parse_seconds,
    "30",
    "Seconds that `sandkeep.compat.astraforge` waits for a session that another program starts, before it makes a new "
    "one.",
)
READY_POLL_INTERVAL = Setting(
    "ASTRA_FORGE_SANDBOX_READY_POLL_INTERVAL",
    parse_seconds,
    "0.5",
    "Seconds between two looks at such a session.",
)
