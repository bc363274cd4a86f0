"""Access control of the page: address, token and certificate."""

import datetime
import hmac
import ipaddress
import os
import re
import secrets
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from robot_rl.files.durable import sync
from robot_rl.hardware.protocol.endpoints import make_private
from robot_rl.hardware.teleop.web.settings import SELF_SIGNED, WebSettings, is_loopback

_VALID: Final = datetime.timedelta(days=820)
"""Browsers refuse certificates of more than 825 days."""
_RENEW_BEFORE: Final = datetime.timedelta(days=7)


def self_signed_certificate(names: Sequence[str]) -> tuple[Path, Path]:
    """Return the files of certificate and key for these names; made at the first call and before expiry.

    Raises:
        ValueError: if other users can read their folder.
    """
    folder = _folder()
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    if not (key.exists() and certificate.exists() and _is_valid_for(certificate, names)):
        _make(certificate, key, names)
    return certificate, key


def fingerprint(path: Path) -> str:
    """SHA-256 of a PEM file's first certificate, as colon-separated hex pairs.

    Raises:
        ValueError: if the file holds no certificate.
    """
    digest = x509.load_pem_x509_certificate(path.read_bytes()).fingerprint(hashes.SHA256())
    return digest.hex(":").upper()


def _folder() -> Path:
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    folder = data / "robot-rl" / "web"
    folder.parent.mkdir(parents=True, exist_ok=True)
    make_private(folder)
    return folder


def _is_valid_for(path: Path, names: Sequence[str]) -> bool:
    """Whether a certificate covers all of these names and does not expire soon."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    return left > _RENEW_BEFORE and set(map(_general_name, names)) <= set(named)


def _make(certificate: Path, key: Path, names: Sequence[str]) -> None:
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "robot-rl")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName([*map(_general_name, names)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(secret, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    _write(key, secret.private_bytes(pem, pkcs8, plain))
    _write(certificate, signed.public_bytes(pem))


def _general_name(name: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(name))
    return x509.DNSName(name)


def _write(path: Path, text: bytes) -> None:
    """Write a file that has mode 0600 from the start."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(text)
    sync(path)
    sync(path.parent)


_HOST: Final = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9_.-]+))(?::\d{1,5})?")
"""A `Host` header: an IPv6 address in brackets, or a name or IPv4 address; then an optional port."""


@dataclass(frozen=True)
class Access:
    """Address, token and certificate of the page."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    fingerprint: str
    """SHA-256 of the certificate, as browsers show it; empty without one."""
    token: str = field(repr=False)
    names: frozenset[str]
    """Host names and addresses of this server that browsers may use, in lower case."""

    def serves(self, host: str, local_address: str) -> bool:
        """Whether a request's `Host` header names this server.

        Another page's host name can be made to point to this machine (DNS rebinding). Its requests then carry
        the server's origin, but still that name in `Host`.

        Args:
            host: the header, with or without a port. Forwarded connections have another port.
            local_address: local address at which the request arrived.
        """
        parts = _HOST.fullmatch(host)
        if parts is None:
            return False
        name = _normalized(parts[1] or parts[2])
        return name in self.names or name == _normalized(local_address)

    def admits(self, token: str) -> bool:
        """Whether the token is right, compared in constant time."""
        return hmac.compare_digest(token.encode(), self.token.encode())

    @property
    def scheme(self) -> str:
        return "https" if self.tls else "http"

    def url(self, port: int) -> str:
        """The link with the token; anyone who has it may move the arm."""
        host = (
            f"[{_reachable_host(self.host)}]"
            if ":" in _reachable_host(self.host)
            else _reachable_host(self.host)
        )
        return f"{self.scheme}://{host}:{port}/#{self.token}"


def make_access(settings: WebSettings) -> Access:
    """Create the access data with a new token; loads or makes the certificate.

    Raises:
        ValueError: if the certificate's files are invalid.
    """
    host, port, token = settings.host, settings.port, secrets.token_urlsafe(16)
    certificate, key = settings.certificate, settings.key
    names = _names(host, settings.names)
    known = frozenset(map(_normalized, names))
    if certificate is None:
        return Access(host, port, None, "", token, known)
    if certificate == SELF_SIGNED:
        certificate, key = map(str, self_signed_certificate(names))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # With an empty password, an encrypted key is refused instead of prompting for its password.
        tls.load_cert_chain(certificate, key, password="")
        shown = fingerprint(Path(certificate))
    except (OSError, ValueError) as error:
        reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
        with_key = f" with device.key={key}" if key else ""
        raise ValueError(f"device.certificate={certificate}{with_key}: {reason}") from None
    return Access(host, port, tls, shown, token, known)


def _reachable_host(host: str) -> str:
    """A host that others can use; for the unspecified address, this machine's address on its network."""
    try:
        unspecified = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host
    if not unspecified:
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing: the kernel only picks the local address. The target is reserved (RFC 5737).
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return socket.gethostname()
        return str(probe.getsockname()[0])


def _names(host: str, additional: Sequence[str]) -> list[str]:
    """Names and addresses of this server, for its certificate and for `Host` headers."""
    loopback = ("localhost", "127.0.0.1", "::1")
    name = socket.gethostname()
    own = () if is_loopback(host) else (name, f"{name}.local")
    return list(dict.fromkeys((_reachable_host(host), *own, *loopback, *additional)))


def _normalized(name: str) -> str:
    """Canonical spelling of a name or address; an IPv4-mapped IPv6 address becomes IPv4."""
    name = name.lower().rstrip(".")
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
