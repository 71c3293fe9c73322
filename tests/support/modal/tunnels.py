"""Tunnels: ports of this machine's loopback that lead to ports of a sandbox, plainly and through TLS."""

import asyncio
import concurrent.futures
import contextlib
import datetime as dt
import functools
import ipaddress
import socket
import ssl
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Final

from modal_proto import api_pb2
from tests.support.doubles import launcher

_HOST: Final = "127.0.0.1"
_CHUNK: Final = 65536
_DAY: Final = dt.timedelta(days=1)


class Tunnels:
    """The tunnels of one sandbox. `busy` is entered while somebody is connected."""

    def __init__(self, busy: Callable[[], AbstractContextManager[None]]) -> None:
        self._busy = busy
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._network: concurrent.futures.ThreadPoolExecutor | None = None
        self.data: list[Any] = []

    async def open(self, pid: int, ports: Iterable[Any]) -> None:
        """Listen for each port of the sandbox in whose network a process is."""
        for port in ports:
            encrypted = await self._listen(pid, port.port, _tls())
            plain = {}
            if port.unencrypted:
                plain = {"unencrypted_host": _HOST, "unencrypted_port": await self._listen(pid, port.port, None)}
            self.data.append(api_pb2.TunnelData(container_port=port.port, host=_HOST, port=encrypted, **plain))

    async def _listen(self, pid: int, port: int, tls: ssl.SSLContext | None) -> int:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task
            self._connections.add(task)
            try:
                with contextlib.suppress(asyncio.CancelledError), self._busy():  # `close` cancels it
                    await self._serve(pid, port, reader, writer)
            finally:
                self._connections.discard(task)
                writer.transport.abort()

        server = await asyncio.start_server(serve, _HOST, 0, ssl=tls)
        self._servers.append(server)
        listening: int = server.sockets[0].getsockname()[1]
        return listening

    async def _serve(self, pid: int, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection; it is closed at once if nobody listens in the sandbox."""
        try:
            inner = await self._connect(pid, port)
        except OSError:
            return
        inner_reader, inner_writer = await asyncio.open_connection(sock=inner)
        try:
            await asyncio.gather(_carry(reader, inner_writer), _carry(inner_reader, writer))
        finally:
            inner_writer.transport.abort()

    async def _connect(self, pid: int, port: int) -> socket.socket:
        """Connect to a port of the sandbox. Raises OSError."""
        if self._network is None:
            enter = functools.partial(launcher.enter_network, pid)
            self._network = concurrent.futures.ThreadPoolExecutor(1, initializer=enter)
        loop = asyncio.get_running_loop()
        made = await loop.run_in_executor(self._network, socket.socket)  # it is of the network where it is made
        try:
            made.setblocking(False)
            await loop.sock_connect(made, (_HOST, port))
        except BaseException:
            made.close()
            raise
        return made

    async def reaches(self, pid: int, port: int) -> bool:
        """Return True if somebody listens at a port of the sandbox."""
        try:
            made = await self._connect(pid, port)
        except OSError:
            return False
        made.close()
        return True

    async def close(self) -> None:
        """Close all connections."""
        for server in self._servers:
            server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections)
        if self._network:
            self._network.shutdown()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


@functools.cache
def _tls() -> ssl.SSLContext:
    """Make a context with a certificate of its own for the loopback address."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _HOST)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - _DAY, now + _DAY)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(_HOST))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile() as file:
        file.write(certificate.public_bytes(serialization.Encoding.PEM))
        file.write(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        file.flush()
        context.load_cert_chain(file.name)
    return context
