"""The connection to a policy server: one request after the other, reconnection, and what ends its use."""

import hashlib
import os
import socket
import ssl
import struct
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
from websockets.sync.client import ClientConnection, connect
from websockets.uri import parse_uri

from robot_rl.errors import ServerLost
from robot_rl.hardware.teleop.web.settings import is_loopback
from robot_rl.policy_client.codec import MAX_MESSAGE, MessageError, decode, encode

TOKEN: Final = "ROBOT_RL_TOKEN"
"""Environment variable of the token."""
_BACKOFF: Final = (0.1, 2.0)
"""First and longest pause before connecting again, s."""
_TOO_BIG: Final = 1009
_MAX_LINE: Final = 200
T = TypeVar("T")


class PolicyLost(ServerLost):
    """A policy server is gone, or its answers cannot be used."""


class PolicyRefused(PolicyLost):
    """A policy server answered a request with an error."""


Ask = Callable[[Mapping[str, Any]], dict[str, Any]]
Identify = Callable[[Mapping[str, Any], bytes, Ask], str]
"""Names the policy of a server, from its metadata, the same as bytes, and a way to ask it."""


class PolicyConnection:
    """Requests to a policy server, of any thread, one at a time.

    A request is repeated on a new connection until its time is over. After each connection the server has to
    serve the same policy as before.
    """

    def __init__(self, url: str, timeout: float, certificate: str | None = None) -> None:
        """Connect.

        Args:
            url: `ws://host:port` or `wss://host:port`.
            timeout: for a reply, with all attempts, s.
            certificate: PEM file of certificates to trust besides those of the system, for `wss`.

        Raises:
            ValueError: if the address or certificate cannot be used.
            PolicyLost: if there is no policy server.
        """
        self.url, self._timeout = url, timeout
        self._tls = _tls(url, certificate)
        self._private = self._tls is not None or is_loopback(urlsplit(url).hostname or "")
        """Whether no other machine can read what is sent."""
        self._identify: Identify | None = None
        self.fingerprint = ""
        """What `identify` returned first."""
        self._lock = threading.RLock()
        self._open: list[ClientConnection] = []
        """The connection, if there is one."""
        weakref.finalize(self, _close, self._open)
        self.metadata: dict[str, Any] = {}
        self._welcome = b""
        with self._lock:
            self._retry(lambda: None, time.monotonic() + timeout)

    def identify(self, identify: Identify) -> None:
        """Name the policy of the server, now and after each connection.

        Raises:
            PolicyLost: if the server does not answer.
        """
        with self._lock:
            deadline = time.monotonic() + self._timeout
            self.fingerprint = self._retry(lambda: self._name(identify, deadline), deadline)
            self._identify = identify

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to a request.

        Raises:
            PolicyLost: if there is none in time, it is damaged or an error, or the server was replaced.
        """
        with self._lock:
            deadline = time.monotonic() + self._timeout
            return self._retry(lambda: self._exchange(request, deadline), deadline)

    def lost(self, why: str, kind: type[PolicyLost] = PolicyLost) -> PolicyLost:
        """An error with the server's address; the next request connects again."""
        with self._lock:
            _close(self._open)
        return kind(f"the policy server at {self.url} cannot be used: {why}")

    # ---- with the lock -----------------------------------------------------------------------------------

    def _retry(self, action: Callable[[], T], deadline: float) -> T:
        """The result of `action`, which needs a connection and is repeated while connections fail."""
        pause, longest = _BACKOFF
        while True:
            try:
                if not self._open:
                    self._connect(deadline)
                return action()
            except TimeoutError:
                raise self.lost(
                    f"no answer within {self._timeout:g} s: look at what the server does, or, with "
                    "base=remote, choose a larger base.timeout"
                ) from None
            except ConnectionClosed as error:
                if any(close and close.code == _TOO_BIG for close in (error.rcvd, error.sent)):
                    raise self.lost("a message is larger than one of the two accepts") from None
                reason = "it closes the connection"
            except OSError as error:
                if isinstance(error, ssl.SSLCertVerificationError):
                    raise self.lost(
                        f"its certificate is not trusted ({error.verify_message}): name its file in the "
                        "environment variable SSL_CERT_FILE or, with base=remote, in base.certificate"
                    ) from None
                reason = (error.strerror or str(error)).lower()
            except InvalidHandshake as error:
                if not isinstance(error.__cause__, EOFError):
                    raise self.lost(self._refusal(error)) from None
                reason = "it closes the connection"
            except BaseException:
                # The reply may still come, and the next request would take it for its own.
                _close(self._open)
                raise
            _close(self._open)
            if time.monotonic() + pause > deadline:
                raise self.lost(f"{_line(reason)}: start it, or look at why it ended")
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def _connect(self, deadline: float) -> None:
        """Connect, receive the server's metadata, and check that it serves the same policy."""
        left = max(deadline - time.monotonic(), _BACKOFF[0])
        token = os.environ.get(TOKEN) if self._private else None
        connection = connect(
            self.url,
            additional_headers={"Authorization": f"Api-Key {token}"} if token else None,
            ssl=self._tls,
            compression=None,
            max_size=MAX_MESSAGE,
            open_timeout=left,
            close_timeout=1.0,
            # Servers that compute in the thread that answers pings are silent meanwhile.
            ping_interval=None,
            proxy=None,
        )
        self._open.append(connection)
        # A server that does not read would stop `send` for ever.
        limit = struct.pack("ll", int(self._timeout), int(self._timeout % 1 * 1e6))
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        welcome = connection.recv(left)
        if not isinstance(welcome, bytes):
            raise self.lost(f"it sends {_line(welcome)!r} instead of its metadata")
        self.metadata, self._welcome = self._decoded(welcome), welcome
        if self._identify and self._name(self._identify, deadline) != self.fingerprint:
            raise self.lost("it serves another policy than before: the server was replaced")

    def _name(self, identify: Identify, deadline: float) -> str:
        return identify(self.metadata, self._welcome, lambda request: self._exchange(request, deadline))

    def _exchange(self, request: Mapping[str, Any], deadline: float) -> dict[str, Any]:
        (connection,) = self._open
        connection.send(encode(request))
        reply = connection.recv(max(deadline - time.monotonic(), 0.0))
        if isinstance(reply, str):
            raise self.lost(f"it says {_line(reply)!r}", PolicyRefused)
        return self._decoded(reply)

    def _refusal(self, error: InvalidHandshake) -> str:
        response = getattr(error, "response", None)
        if getattr(response, "status_code", None) == 401:
            if not self._private:
                return "it asks for a token, which is not sent to other machines without TLS: use wss://"
            return f"it asks for a token: set {TOKEN}"
        body = getattr(response, "body", None) or b""
        return _line(body.decode("utf-8", "replace")) or f"it is no WebSocket server ({_line(str(error))})"

    def _decoded(self, frame: bytes) -> dict[str, Any]:
        try:
            return decode(frame)
        except MessageError as error:
            raise self.lost(f"it sent {_line(str(error))}") from None


def reply_fingerprint(*parts: bytes) -> str:
    """First 16 hex digits of the sha256 of what names a policy, such as what its server sent."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:16]


def _close(connections: list[ClientConnection]) -> None:
    """Close the connections, without the handshake that a stalled server would not answer."""
    while connections:
        with suppress(OSError):
            connections.pop().close_socket()


def _tls(url: str, certificate: str | None) -> ssl.SSLContext | None:
    """The settings of `wss`. Raises ValueError if the address or the certificate cannot be used."""
    try:
        parts = urlsplit(url)
        parse_uri(url)
        usable = parts.scheme in ("ws", "wss") and bool(parts.hostname) and parts.port != 0
    except (ValueError, InvalidURI):
        usable = False
    if not usable:
        raise ValueError(f"base.url={url}: give ws://host:port or wss://host:port")
    if parts.scheme == "ws":
        if certificate:
            raise ValueError(f"base.certificate={certificate} is for base.url=wss://…")
        return None
    context = ssl.create_default_context()
    if certificate:
        try:
            context.load_verify_locations(certificate)
        except (OSError, ssl.SSLError) as error:
            raise ValueError(f"base.certificate={certificate} cannot be used: {error}") from None
    return context


def _line(text: str) -> str:
    """The last line of a text, as the last line of a traceback says what happened; shortened."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_MAX_LINE] if lines else ""
