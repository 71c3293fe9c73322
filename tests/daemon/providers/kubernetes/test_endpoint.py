"""The address and the credentials of the official client's configuration, as the API server gets them."""

import datetime as dt
import ssl
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from kubernetes.client import Configuration
from kubernetes.config import ConfigException
from tests.support.exec_server import ExecServer, exec_server
from tests.support.patience import patient

from sandkeep.errors import ProviderError, SetupError
from sandkeepd.providers.kubernetes.endpoint import read_endpoint
from sandkeepd.providers.kubernetes.exec import open_exec


def write_certificate(directory: Path, name: str, password: bytes | None = None) -> tuple[str, str]:
    """Write a certificate that is its own authority, for that host or client; return its path and that of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
        .not_valid_after(dt.datetime(2120, 1, 1, tzinfo=dt.UTC))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    hidden = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)
    (directory / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (directory / f"{name}.key").write_bytes(pem)
    return str(directory / f"{name}.crt"), str(directory / f"{name}.key")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    directory = tmp_path_factory.mktemp("certificates")
    return {name: write_certificate(directory, name) for name in ("api.example", "client", "stranger")}


@pytest.fixture
async def server(certificates: dict[str, tuple[str, str]]) -> AsyncIterator[ExecServer]:
    """A server that has a name of its own, and lets nobody in but one client."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates["client"][0])
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(*certificates["api.example"])
    async with exec_server(context) as made:
        yield made


def configuration(server: ExecServer, certificates: dict[str, tuple[str, str]], **other: Any) -> Configuration:
    cert, key = certificates["client"]
    options = {
        "ssl_ca_cert": certificates["api.example"][0], "cert_file": cert, "key_file": key,
        "tls_server_name": "api.example", **other,
    }  # fmt: skip
    return Configuration(host=f"https://127.0.0.1:{server.port}/some/prefix/", **options)


async def run(configured: Configuration) -> int | None:
    with trio.fail_after(patient(60)):
        command = ["sh", "-c", "cat; exit 5"]
        async with open_exec(configured, "ns", "pod", command) as stream, trio.open_nursery() as nursery:

            @nursery.start_soon  # who only sends waits for ever once all buffers are full of what comes back
            async def send() -> None:
                await stream.send_all(b"x" * 1_000_000)
                await stream.close_stdin()

            received = 0
            while data := await stream.receive_some():
                received += len(data)
            assert received == 1_000_000
            return await stream.wait()


async def test_tls(server: ExecServer, certificates: dict[str, tuple[str, str]]) -> None:
    assert await run(configuration(server, certificates)) == 5
    assert server.requests[0].path.startswith("/some/prefix/api/v1/namespaces/ns/pods/pod/exec?")
    assert dict(server.requests[0].headers).get(b"authorization") is None


@pytest.mark.parametrize(
    "other",
    [
        {"verify_ssl": False, "tls_server_name": None, "ssl_ca_cert": None},
        {"tls_server_name": None, "assert_hostname": False},
    ],
)
async def test_less_is_verified(
    server: ExecServer, certificates: dict[str, tuple[str, str]], other: dict[str, Any]
) -> None:
    assert await run(configuration(server, certificates, **other)) == 5


@pytest.mark.parametrize("wrong", ["authority", "name", "client", "anonymous", "no TLS"])
async def test_no_trust(server: ExecServer, certificates: dict[str, tuple[str, str]], wrong: str) -> None:
    stranger = certificates["stranger"]
    other: dict[str, dict[str, Any]] = {
        "authority": {"ssl_ca_cert": stranger[0]},
        "name": {"tls_server_name": None},
        "client": {"cert_file": stranger[0], "key_file": stranger[1]},
        "anonymous": {"cert_file": None, "key_file": None},
        "no TLS": {},
    }
    configured = configuration(server, certificates, **other[wrong])
    if wrong == "no TLS":
        configured.host = f"http://127.0.0.1:{server.port}"
    with pytest.raises(ProviderError) as caught:
        await run(configured)
    assert caught.value.data == {"engine": "kubernetes"}
    assert "127.0.0.1" in caught.value.message
    assert server.requests == []


async def test_a_token_is_refreshed_for_each_connection() -> None:
    threads = []

    def refresh(configured: Configuration) -> None:
        threads.append(threading.current_thread())
        configured.api_key["authorization"] = f"token-{len(threads)}"

    async with exec_server() as server:
        configured = Configuration(host=f"http://127.0.0.1:{server.port}")
        configured.api_key["authorization"] = "old"
        configured.api_key_prefix["authorization"] = "Bearer"
        configured.refresh_api_key_hook = refresh  # type: ignore[assignment]
        for _ in range(2):
            async with open_exec(configured, "ns", "pod", ["true"]) as stream:
                assert await stream.wait() == 0
        sent = [dict(request.headers)[b"authorization"] for request in server.requests]
    assert sent == [b"Bearer token-1", b"Bearer token-2"]
    assert threading.main_thread() not in threads


async def test_a_token_that_is_no_header() -> None:
    async with exec_server() as server:
        configured = Configuration(host=f"http://127.0.0.1:{server.port}")
        configured.api_key["authorization"] = "Bearer x\r\nImpersonate-User: admin"
        with pytest.raises(ProviderError, match="malformed"):
            async with open_exec(configured, "ns", "pod", ["true"]):
                pass
        assert server.requests == []


def failing(_: Configuration) -> None:
    raise ConfigException("the plugin said no")


@pytest.mark.parametrize(
    ("host", "attribute", "value"),
    [("ftp://h", "", None), ("https://", "", None), ("http://h:x", "", None), ("https://h", "ssl_ca_cert", "/absent"),
     ("https://h", "cert_file", "/absent"), ("http://h", "refresh_api_key_hook", failing)],
)  # fmt: skip
def test_what_cannot_be_used_is_for_the_administrator(host: str, attribute: str, value: object) -> None:
    configured = Configuration(host=host)
    configured.api_key["authorization"] = "x"
    if attribute:
        setattr(configured, attribute, value)
    with pytest.raises(SetupError) as caught:
        read_endpoint(configured)
    assert caught.value.code == "not_configured"
    assert host in caught.value.message


def test_a_key_with_a_password_is_refused(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path, "locked", b"secret")
    with pytest.raises(SetupError):
        read_endpoint(Configuration(host="https://h", cert_file=cert, key_file=key))


@pytest.mark.parametrize(
    ("host", "port", "header"),
    [("https://h", 443, "h"), ("http://h", 80, "h"), ("https://[::1]:6443", 6443, "[::1]:6443")],
)
def test_addresses(host: str, port: int, header: str) -> None:
    found = read_endpoint(Configuration(host=host))
    assert (found.port, found.host_header, found.prefix) == (port, header, "")
