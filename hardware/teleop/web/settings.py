"""Where the page is, and that nobody can reach it from elsewhere without a certificate."""

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Final

OWN: Final = "self"
"""In place of a certificate's file: one that is made here."""
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")


@dataclass
class WebSettings:
    """A page for any browser. Open the link that is printed: its end is a token, which may move the arm."""

    host: str = "127.0.0.1"
    """Of this machine; 0.0.0.0 lets other machines in, and a phone, and takes a certificate."""
    port: int = 8443
    """0 for any that is free."""
    certificate: str | None = None
    """PEM file, or `self` for one that is made here at the first start; null on this machine alone."""
    key: str | None = None
    """PEM file of the certificate's key, where it is in another file."""
    names: list[str] = field(default_factory=list)
    """Further names and addresses that browsers may use for this machine, e.g. [robot.example.org]."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(
                f"device.port={self.port}: choose one from 1 to 65535, or 0 for any that is free"
            )
        for name in self.names:
            if not (_NAME.fullmatch(name) or _is_address(name)):
                raise ValueError(
                    f"device.names={name}: give a host name or an address alone, without https:// and port"
                )
        if self.certificate is not None:
            return
        if self.key is not None:
            raise ValueError(
                f"device.key={self.key} is the key of a certificate: give device.certificate too"
            )
        if not is_loopback(self.host):
            raise ValueError(
                f"device.host={self.host} can be reached by other machines, and the page moves the arm: say "
                f"device.certificate={OWN}, which makes one, or give a PEM file; or use 127.0.0.1"
            )


def is_loopback(host: str) -> bool:
    """Whether no other machine can reach it. A name may mean anything, so only one is believed."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
