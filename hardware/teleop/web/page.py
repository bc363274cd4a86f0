"""Serves the HTML page with its security headers, and checks requests before a connection is opened."""

import base64
import hashlib
import re
from http import HTTPStatus
from pathlib import Path
from typing import Final

from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from robot_rl.hardware.teleop.web.access import Access

LINK: Final = "/link"
"""Path of the page's WebSocket."""
_WRONG_HOST: Final = (
    b"this server does not answer to that name: open the link that the program printed, "
    b"or add the name with device.names=[...]\n"
)


class Page:
    """Answers HTTP requests."""

    def __init__(self) -> None:
        text = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
        self._body = text.encode()
        style, script = (_hash(text, tag) for tag in ("style", "script"))
        policy = (
            f"default-src 'none'; script-src {script}; style-src {style}; img-src blob: data:; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        self._headers = {
            "Content-Type": "text/html; charset=utf-8",
            "Content-Security-Policy": policy,
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
        }

    def answer(self, request: Request, access: Access, local_address: str) -> Response | None:
        """Answer a request; None if it is the page's own WebSocket request, which is accepted.

        Args:
            request: an untrusted request.
            access: names and scheme of this server.
            local_address: local address at which the request arrived.
        """
        hosts = request.headers.get_all("Host")
        if len(hosts) != 1 or not access.serves(hosts[0], local_address):
            return _respond(HTTPStatus.MISDIRECTED_REQUEST, _WRONG_HOST)
        path = request.path.partition("?")[0]
        if path == "/":
            return _respond(HTTPStatus.OK, self._body, self._headers)
        if path != LINK:
            return _respond(HTTPStatus.NOT_FOUND, b"there is only one page here: /\n")
        # Browsers let any page open WebSockets to any server, but send that page's origin.
        if request.headers.get_all("Origin") != [f"{access.scheme}://{hosts[0]}"]:
            return _respond(HTTPStatus.FORBIDDEN, b"only the page of this server may connect\n")
        return None


def _hash(text: str, tag: str) -> str:
    """CSP hash of the only inline element of this kind."""
    found = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    assert len(found) == 1, f"{len(found)} elements {tag}"
    return f"'sha256-{base64.b64encode(hashlib.sha256(found[0].encode()).digest()).decode()}'"


def _respond(status: HTTPStatus, body: bytes, more: dict[str, str] | None = None) -> Response:
    headers = {"Content-Type": "text/plain", "Connection": "close", "Content-Length": str(len(body))}
    return Response(status.value, status.phrase, Headers({**headers, **(more or {})}), body)
