"""The stream server's key and certificate for TLS: made once, and known to clients by the certificate's digest."""

import datetime as dt
import ipaddress
import logging
import os
import ssl
from typing import Final

from msgspec import Struct

from sandkeep.errors import DaemonError
from sandkeep.protocol.tls import pin_of
from sandkeep_store.files import private_file

logger: Final = logging.getLogger("sandkeepd")

FILE_NAME: Final = "stream.pem"
_NEVER: Final = dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
"""RFC 5280 has this time for certificates without a good end. A pin needs none: removing the file renews the key."""


class Identity(Struct, frozen=True):
    """TLS context of the server, and the pin by which clients know it."""

    context: ssl.SSLContext
    pin: str

    @classmethod
    def of(cls, state_dir: str) -> "Identity":
        """Load the key of a state directory, or make it. Raises `not_configured` without the library that makes it."""
        path = f"{state_dir}/{FILE_NAME}"
        pem = private_file.read(path, "the stream server's key")
        if pem is not None:
            try:
                return cls._parse(pem)
            except (ssl.SSLError, ValueError):
                logger.warning("the stream server's key is damaged: made anew", extra={"path": path})
        pem = _generate()
        try:
            private_file.write(path, pem)
        except DaemonError as error:  # a full disk is no reason not to start
            logger.warning("the stream server's pin holds only until the daemon stops", extra={"why": error.message})
        return cls._parse(pem)

    @classmethod
    def _parse(cls, pem: bytes) -> "Identity":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0  # nobody resumes
        # The library takes no bytes, only a path; and a checked file must not be read twice.
        memory = os.memfd_create("key", os.MFD_CLOEXEC)
        with open(memory, "wb", buffering=0) as file:
            file.write(pem)
            context.load_cert_chain(f"/proc/self/fd/{memory}")
        text = pem.decode("ascii")
        return cls(context, pin_of(ssl.PEM_cert_to_DER_cert(text[text.index(ssl.PEM_HEADER) :])))


def _generate() -> bytes:
    """Return a new key and self-signed certificate, in PEM, that a browser accepts if it is told to."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # OpenSSL takes the first of several trusted certificates of one name, and a bundle may hold those of many daemons.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"sandkeep {serial:x}")])
    addresses = [x509.IPAddress(ipaddress.ip_address(text)) for text in ("127.0.0.1", "::1")]
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), serial)
        .not_valid_before(dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
        .not_valid_after(_NEVER)
        .add_extension(x509.SubjectAlternativeName([*addresses, x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return secret + certificate.public_bytes(serialization.Encoding.PEM)
