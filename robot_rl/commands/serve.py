"""Serve a policy to robots and programs that speak openpi's WebSocket protocol.

A client gets the policy's description when it connects. It sends observations (msgpack maps with NumPy
arrays) and receives chunks of actions in [-1, 1]; the description says what 1 means in each dimension. See
docs/serving.md. Ctrl-C ends the server.
"""

import os
import secrets
import ssl
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import torch

from robot_rl.cli.signals import stop_on_signal
from robot_rl.errors import UserError, as_user_errors
from robot_rl.hardware.teleop.web.settings import is_loopback
from robot_rl.policies.asynchronous import SYNCHRONOUS
from robot_rl.policy_client.connection import TOKEN
from robot_rl.policy_server.inference import Inference, PolicyInference
from robot_rl.policy_server.lerobot_inference import LeRobotInference
from robot_rl.policy_server.lerobot_process import (
    LeRobotProcess,
    PolicyProcessLost,
    check_interpreter,
    check_lerobot,
    is_lerobot,
)
from robot_rl.policy_server.server import Listen, PolicyServer
from robot_rl.saved_policies.loading import choose_device, load_networks, warn_of_other_execution

_CHECK = 0.2


@dataclass
class Config:
    policy: str = "???"
    """Directory of a run, of a saved policy, of a bundle from `robot-rl export`, or of a policy that LeRobot
    saved (`pretrained_model`)."""
    python: str | None = None
    """For a policy of LeRobot: the Python interpreter that has lerobot, for example ~/lerobot/bin/python."""
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


def run(config: Config) -> None:
    torch.set_num_threads(config.threads)
    with ExitStack() as stack:
        with as_user_errors():
            listen = _listen(config)
            inference, process = _policy(config)
            if process:
                stack.callback(process.close)
            server = PolicyServer(inference, listen)
            try:
                port = server.start()
            except OSError as error:
                why = (error.strerror or str(error)).lower()
                raise UserError(f"address={config.address}: {why}") from None
        scheme = "wss" if listen.tls else "ws"
        print(f"serving {config.policy} at {scheme}://{urlsplit(config.address).hostname}:{port}", flush=True)
        if listen.token and not os.environ.get(TOKEN):
            print(f"clients need the token {listen.token} (set {TOKEN} for one of your own)", flush=True)
        _until_stopped(server, process)


def _until_stopped(server: PolicyServer, process: LeRobotProcess | None) -> None:
    """Serve until Ctrl-C. If the policy's process ends, clients are told and PolicyProcessLost is raised."""
    failure = ""
    try:
        with stop_on_signal() as stop:
            while not stop():
                server.check()
                if process:
                    process.check()
                time.sleep(_CHECK)
    except PolicyProcessLost as error:
        failure = str(error)
        raise
    finally:
        if process:
            # First: the server waits for the policy's answer.
            process.close()
        server.close(failure)


def _policy(config: Config) -> tuple[Inference, LeRobotProcess | None]:
    """What is served, and the process of a policy of LeRobot."""
    directory = Path(config.policy)
    if not is_lerobot(directory):
        if config.python is not None:
            raise ValueError(
                f"python={config.python} is for a policy of LeRobot, and {config.policy} is none: give its "
                "folder pretrained_model, with config.json and model.safetensors"
            )
        networks, meta = load_networks(config.policy, choose_device(config.device))
        # Clients get the chunk for what they observe: its delay, if it has one, is theirs.
        warn_of_other_execution(networks, meta, SYNCHRONOUS)
        return PolicyInference(networks, meta["environment"], config.seed), None
    if config.python is None:
        raise ValueError(
            f"{config.policy} is a policy of LeRobot: give python=…, an interpreter that has lerobot "
            "(docs/serving.md)"
        )
    check_lerobot(directory)
    python = config.python
    check_interpreter(python)
    process = LeRobotProcess(directory, python, config.device, config.threads)
    return LeRobotInference(process, directory, config.seed), process


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
