"""Where the page is, and that nobody can reach it from elsewhere without a certificate."""

import ipaddress
from dataclasses import dataclass
from typing import Final

OWN: Final = "self"
"""In place of a certificate's file: one that is made here."""


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

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(
                f"device.port={self.port}: choose one from 1 to 65535, or 0 for any that is free"
            )
        if self.certificate is not None:
            return
        if self.key is not None:
            raise ValueError(
                f"device.key={self.key} is the key of a certificate: give device.certificate too"
            )
        if not _is_loopback(self.host):
            raise ValueError(
                f"device.host={self.host} can be reached by other machines, and the page moves the arm: say "
                f"device.certificate={OWN}, which makes one, or give a PEM file; or use 127.0.0.1"
            )


def _is_loopback(host: str) -> bool:
    """Whether no other machine can reach it. A name may mean anything, so only one is believed."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
