"""Who may open the page, and over what: address, token and certificate."""

import hmac
import ipaddress
import secrets
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from hardware.teleop.web.certificate import fingerprint, own_certificate
from hardware.teleop.web.settings import OWN, WebSettings


@dataclass(frozen=True)
class Access:
    """Where the page is, and what it takes to use it."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    fingerprint: str
    """SHA-256 of the certificate, as browsers show it; empty without one."""
    token: str = field(repr=False)

    def admits(self, token: str) -> bool:
        """Whether it is the right token, in a time that tells nothing about it."""
        return hmac.compare_digest(token.encode(), self.token.encode())

    @property
    def scheme(self) -> str:
        return "https" if self.tls else "http"

    def url(self, port: int) -> str:
        """For the person who shall use it; whoever has it may move the arm."""
        host = f"[{_shown(self.host)}]" if ":" in _shown(self.host) else _shown(self.host)
        return f"{self.scheme}://{host}:{port}/#{self.token}"


def make_access(settings: WebSettings) -> Access:
    """What an address needs, with a token of its own.

    Raises:
        ValueError: the certificate's files are none.
    """
    host, port, token = settings.host, settings.port, secrets.token_urlsafe(16)
    certificate, key = settings.certificate, settings.key
    if certificate is None:
        return Access(host, port, None, "", token)
    if certificate == OWN:
        certificate, key = map(str, own_certificate(_names(host)))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # An empty password: a key that has one is refused, and nobody is asked for it.
        tls.load_cert_chain(certificate, key, password="")
        shown = fingerprint(Path(certificate))
    except (OSError, ValueError) as error:
        reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
        with_key = f" with device.key={key}" if key else ""
        raise ValueError(f"device.certificate={certificate}{with_key}: {reason}") from None
    return Access(host, port, tls, shown, token)


def _shown(host: str) -> str:
    """A host that others can use: for all addresses of this machine, the one that leads to a network."""
    try:
        unspecified = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host
    if not unspecified:
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Nothing is sent; the kernel says which address it would use (RFC 5737: nobody has this one).
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return socket.gethostname()
        return str(probe.getsockname()[0])


def _names(host: str) -> list[str]:
    """What a certificate made here is for."""
    name = socket.gethostname()
    return list(dict.fromkeys((_shown(host), name, f"{name}.local", "localhost", "127.0.0.1", "::1")))
