"""Settings of the web page. Access from other machines requires a certificate."""

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Final

SELF_SIGNED: Final = "self"
"""Value of `certificate` for a self-signed certificate made here."""
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")


@dataclass
class WebSettings:
    """A page for any browser. Open the printed link; it ends with a token that authorises moving the arm."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 admits other machines, also phones, and requires a certificate."""
    port: int = 8443
    """Port; 0 for any free port."""
    certificate: str | None = None
    """PEM file, or `self` to make a self-signed one at the first start; null if only for this machine."""
    key: str | None = None
    """PEM file of the certificate's key, if it is a separate file."""
    names: list[str] = field(default_factory=list)
    """Additional names and addresses of this machine that browsers may use, e.g. [robot.example.org]."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(f"device.port={self.port}: choose one from 1 to 65535, or 0 for any free port")
        for name in self.names:
            if not (_NAME.fullmatch(name) or _is_address(name)):
                raise ValueError(
                    f"device.names={name}: give only a host name or address, without https:// and port"
                )
        if self.certificate is not None:
            return
        if self.key is not None:
            raise ValueError(f"device.key={self.key} needs a certificate: give device.certificate too")
        if not is_loopback(self.host):
            raise ValueError(
                f"device.host={self.host} can be reached by other machines, and the page moves the arm: set "
                f"device.certificate={SELF_SIGNED}, which makes one, or to a PEM file; or use 127.0.0.1"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host. `localhost` is the only trusted name."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
