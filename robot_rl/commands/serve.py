"""Serve a policy to robots and programs that speak openpi's WebSocket protocol.

A client gets the policy's description when it connects. It sends observations (msgpack maps with NumPy
arrays) and receives chunks of actions in [-1, 1]; the description says what 1 means in each dimension. See
docs/serving.md. Ctrl-C ends the server.
"""

import os
import secrets
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import torch

from robot_rl.cli.signals import stop_on_signal
from robot_rl.errors import UserError, mistakes
from robot_rl.hardware.teleop.web.settings import is_loopback
from robot_rl.policy_client.connection import TOKEN
from robot_rl.policy_server.inference import PolicyInference
from robot_rl.policy_server.server import Listen, PolicyServer
from robot_rl.saved_policies.loading import choose_device, load_networks

_CHECK = 0.2


@dataclass
class Config:
    policy: str = "???"
    """Directory of a run, of a saved policy, or of a bundle from `robot-rl export`."""
    address: str = "ws://127.0.0.1:8000"
    """Where to listen: `ws://host:port` on this machine, `wss://host:port` for others, too."""
    certificate: str | None = None
    """PEM file of the certificate for wss."""
    key: str | None = None
    """PEM file of its key, if it is a separate file."""
    threads: int = 1
    """CPU threads of the policy."""
    seed: int = 0
    """Seed of the noise of requests that bring none."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto` for a GPU where there is one."""

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ValueError(f"threads={self.threads}: it must be at least 1")


def run(config: Config) -> None:
    torch.set_num_threads(config.threads)
    with mistakes():
        listen = _listen(config)
        networks, meta = load_networks(config.policy, choose_device(config.device))
        server = PolicyServer(PolicyInference(networks, meta["environment"], config.seed), listen)
        try:
            port = server.start()
        except OSError as error:
            raise UserError(f"address={config.address}: {(error.strerror or str(error)).lower()}") from None
    scheme = "wss" if listen.tls else "ws"
    print(f"serving {config.policy} at {scheme}://{urlsplit(config.address).hostname}:{port}", flush=True)
    if listen.token and not os.environ.get(TOKEN):
        print(f"clients need the token {listen.token} (set {TOKEN} for one of your own)", flush=True)
    try:
        with stop_on_signal() as stop:
            while not stop():
                server.check()
                time.sleep(_CHECK)
    finally:
        server.close()


def _listen(config: Config) -> Listen:
    """Check the address. Raises ValueError if other machines could use the policy without a token or TLS."""
    try:
        parts = urlsplit(config.address)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if parts.scheme not in ("ws", "wss") or not host or port is None or parts.path.strip("/"):
        raise ValueError(f"address={config.address}: give ws://host:port or wss://host:port")
    token = os.environ.get(TOKEN)
    if parts.scheme == "ws":
        if config.certificate:
            raise ValueError(f"certificate={config.certificate} is for address=wss://…")
        if not is_loopback(host):
            raise ValueError(
                f"address={config.address} can be reached by other machines: use wss:// with certificate=…, "
                "or 127.0.0.1 and a tunnel"
            )
        return Listen("127.0.0.1" if host == "localhost" else host, port, None, token)
    if not config.certificate:
        raise ValueError(f"address={config.address} needs certificate=…, a PEM file")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    for option, path in (("certificate", config.certificate), ("key", config.key)):
        if path and not Path(path).is_file():
            raise ValueError(f"{option}={path} does not exist")
    try:
        # With an empty password, an encrypted key is refused instead of prompting for its password.
        tls.load_cert_chain(config.certificate, config.key, password="")
    except (OSError, ValueError) as error:
        raise ValueError(f"certificate={config.certificate} cannot be used: {error}") from None
    return Listen(host, port, tls, token or secrets.token_urlsafe(16))
