"""Who may open the page, and over what: address, token and certificate."""

import hmac
import ipaddress
import re
import secrets
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from robot_rl.hardware.teleop.web.certificate import fingerprint, self_signed_certificate
from robot_rl.hardware.teleop.web.settings import OWN, WebSettings, is_loopback

_HOST: Final = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9_.-]+))(?::\d{1,5})?")
"""A `Host` header: an IPv6 address in brackets, or a name or IPv4 address; and a port."""


@dataclass(frozen=True)
class Access:
    """Where the page is, and what it takes to use it."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    fingerprint: str
    """SHA-256 of the certificate, as browsers show it; empty without one."""
    token: str = field(repr=False)
    names: frozenset[str]
    """Host names and addresses that browsers may use for this server, in lower case."""

    def serves(self, host: str, local_address: str) -> bool:
        """Whether a request's `Host` header names this server.

        A page from elsewhere can have its own name resolve to this machine (DNS rebinding). Its requests then
        have the server's origin, but still that name in `Host`.

        Args:
            host: the header, with or without a port. Ports differ where a connection is forwarded.
            local_address: the address of this machine at which the request arrived.
        """
        parts = _HOST.fullmatch(host)
        if parts is None:
            return False
        name = _normalized(parts[1] or parts[2])
        return name in self.names or name == _normalized(local_address)

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
    names = _names(host, settings.names)
    known = frozenset(map(_normalized, names))
    if certificate is None:
        return Access(host, port, None, "", token, known)
    if certificate == OWN:
        certificate, key = map(str, self_signed_certificate(names))
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
    return Access(host, port, tls, shown, token, known)


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


def _names(host: str, further: Sequence[str]) -> list[str]:
    """The names and addresses of this server, for its certificate and for `Host` headers."""
    loopback = ("localhost", "127.0.0.1", "::1")
    name = socket.gethostname()
    own = () if is_loopback(host) else (name, f"{name}.local")
    return list(dict.fromkeys((_shown(host), *own, *loopback, *further)))


def _normalized(name: str) -> str:
    """One spelling for each name or address; an IPv4 address may come in IPv6 form."""
    name = name.lower().rstrip(".")
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
