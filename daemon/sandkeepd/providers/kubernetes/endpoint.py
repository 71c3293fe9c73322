"""The API server's address and the daemon's credentials, from a configuration of the official client, for websockets.

Proxies are not used: the API server has to be reachable directly.
"""

import os
import ssl
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import trio
from msgspec import Struct

from sandkeep.errors import SetupError

if TYPE_CHECKING:
    from kubernetes.client import Configuration

_PORTS: Final = {"http": 80, "https": 443}


class Endpoint(Struct, frozen=True, kw_only=True):
    """An address and credentials as they are now: both may be others for the next connection."""

    host: str
    port: int
    host_header: str
    prefix: str
    server_name: str
    tls: ssl.SSLContext | None
    headers: tuple[tuple[str, str], ...]

    async def connect(self) -> trio.abc.Stream:
        """Connect. Raises OSError, and `trio.BrokenResourceError` when TLS fails."""
        tcp = await trio.open_tcp_stream(self.host, self.port)
        if self.tls is None:
            return tcp
        stream = trio.SSLStream(tcp, self.tls, server_hostname=self.server_name, https_compatible=True)
        try:
            await stream.do_handshake()
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return stream


def read_endpoint(configuration: "Configuration") -> Endpoint:
    """Read the endpoint. Blocks: the refreshing of a token may run a program. Raises `not_configured`."""
    try:
        url = urlsplit(configuration.host)
        port = url.port or _PORTS[url.scheme]
        if not url.hostname:
            raise ValueError("the address has no host")
        return Endpoint(
            host=url.hostname,
            port=port,
            host_header=url.netloc.rpartition("@")[2],
            prefix=url.path.rstrip("/"),
            server_name=configuration.tls_server_name or url.hostname,
            tls=_tls(configuration) if url.scheme == "https" else None,
            headers=authorization(configuration),
        )
    except Exception as error:  # noqa: BLE001  # plugins for credentials raise anything
        message = f"cannot use the configuration of the cluster at {configuration.host}: {error}: see KUBECONFIG"
        raise SetupError("not_configured", message, setting="KUBECONFIG") from None


def _tls(configuration: "Configuration") -> ssl.SSLContext:
    files = [configuration.ssl_ca_cert or None, configuration.cert_file or None, configuration.key_file or None]
    versions = tuple(os.stat(path).st_mtime_ns for path in files if path)
    return _context(
        *files, getattr(configuration, "ca_cert_data", None) or None, bool(configuration.verify_ssl),
        configuration.assert_hostname is not False, versions,
    )  # fmt: skip


@lru_cache(maxsize=4)
def _context(
    ca_file: str | None, cert_file: str | None, key_file: str | None, ca_data: str | bytes | None, verified: bool,
    named: bool, versions: tuple[int, ...],  # noqa: ARG001  # part of the key
) -> ssl.SSLContext:  # fmt: skip
    """Return a context that all connections share: each has all authorities that are trusted, often many.

    `versions` are the times at which the files were changed.
    """
    context = ssl.create_default_context(cafile=ca_file, cadata=ca_data)
    if not named or not verified:
        context.check_hostname = False
    if not verified:
        context.verify_mode = ssl.CERT_NONE
    if cert_file:
        # Without a password OpenSSL would ask the terminal for one.
        context.load_cert_chain(cert_file, key_file, password=b"")
    return context


def authorization(configuration: "Configuration") -> tuple[tuple[str, str], ...]:
    """Return the headers with the credentials. A token may be refreshed, which reads files and runs programs."""
    token = configuration.auth_settings().get("BearerToken", {})
    value = token.get("value")
    return (("Authorization", value),) if value else ()
