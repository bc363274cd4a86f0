"""Act for a training run whose learner is another process (`robot-rl train hil=on`).

The learner starts an actor on its own machine. If the robot is attached to another machine, start this
command there: task, policy and operator come from the learner. Finished episodes stay in the spool until the
learner has them in a checkpoint; the same command resumes.
"""

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from robot_rl.cli.signals import stop_on_signal
from robot_rl.errors import UserError, mistakes
from robot_rl.hardware.clock import MonotonicClock
from robot_rl.hardware.connection import RobotError
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.security import load_client_keys
from robot_rl.hardware.teleop.device import DeviceError
from robot_rl.hil.link.client import LearnerClient, LearnerLost
from robot_rl.hil.link.outbox import Outbox, Spool
from robot_rl.hil.make_actor import make_actor
from robot_rl.saved_policies.loading import choose_device


@dataclass
class Config:
    learner: str = "???"
    """Address of the learner: its `hil.link`."""
    spool: str = "spool"
    """Folder for finished episodes that the learner has not saved yet; one per run."""
    keys: str | None = None
    """File of this actor's keys, made by `robot-rl robot keys`; required for a learner on a network."""
    wait: bool = True
    """Whether to wait for a learner that has not started."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto` for a GPU if there is one."""
    threads: int = 1
    """CPU threads of torch."""


def run(config: Config) -> None:
    torch.set_num_threads(config.threads)
    clock = MonotonicClock()
    with ExitStack() as resources:
        stop = resources.enter_context(stop_on_signal())
        try:
            with mistakes():
                device = choose_device(config.device)
                outbox = Outbox(Spool(Path(config.spool)))
                keys = load_client_keys(Path(config.keys)) if config.keys else None
                client = LearnerClient(parse(config.learner), keys, outbox, clock)
                resources.callback(client.close)
                if config.wait:
                    _say(f"waiting for the learner at {config.learner}")
                welcome = client.handshake(stop, wait=config.wait)
                if welcome is None:
                    return
                folder = Path(resources.enter_context(TemporaryDirectory(prefix="actor-")))
                actor = make_actor(welcome, folder, device, client, clock, stop, _say, resources)
            first = max([welcome.episode, *(episode + 1 for episode in outbox.episodes)])
            actor.run(first)
        except DeviceError as error:
            raise UserError(str(error)) from error
        except (LearnerLost, RobotError) as error:
            waiting = len(outbox.episodes)
            print(
                f"robot-rl: {error}; {waiting} unsaved episodes are in {config.spool}",
                file=sys.stderr,
                flush=True,
            )
            raise SystemExit(1) from error


def _say(text: str) -> None:
    print(f"actor: {text}", file=sys.stderr, flush=True)
