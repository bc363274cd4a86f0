"""Act for a training run whose learner is another process (`robot-rl train hil=on`).

On one machine the learner starts its actor itself. If the robot has its own machine, start this command
there: task, policy and operator come from the learner. Finished episodes stay in the spool until the learner
has them in a checkpoint; the same command resumes after a stop.
"""

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from robot_rl.cli.signals import stop_on_signal
from robot_rl.errors import UserError, mistakes
from robot_rl.factory import choose_device
from robot_rl.hardware.clock import MonotonicClock
from robot_rl.hardware.connection import RobotError
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.security import load_client_keys
from robot_rl.hardware.teleop.device import DeviceError
from robot_rl.hil.link.client import LearnerClient, LearnerLost
from robot_rl.hil.link.outbox import Outbox
from robot_rl.hil.link.spool import Spool
from robot_rl.hil.make_actor import make_actor


@dataclass
class Config:
    learner: str = "???"
    """Address of the learner, its `hil.link`."""
    spool: str = "spool"
    """Folder for finished episodes until the learner has saved them; one for each run."""
    keys: str | None = None
    """File of this actor's keys, from `robot-rl robot keys`; required for a learner on a network."""
    wait: bool = True
    """Wait until the learner is reachable."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto` for a GPU where there is one."""
    threads: int = 1
    """CPU threads of torch."""


def run(config: Config) -> None:
    torch.set_num_threads(config.threads)
    clock = MonotonicClock()
    with ExitStack() as ended:
        stop = ended.enter_context(stop_on_signal())
        try:
            with mistakes():
                device = choose_device(config.device)
                outbox = Outbox(Spool(Path(config.spool)))
                keys = load_client_keys(Path(config.keys)) if config.keys else None
                line = LearnerClient(parse(config.learner), keys, outbox, clock)
                ended.callback(line.close)
                if config.wait:
                    _say(f"waiting for the learner at {config.learner}")
                welcome = line.greet(stop, wait=config.wait)
                if welcome is None:
                    return
                folder = Path(ended.enter_context(TemporaryDirectory(prefix="actor-")))
                actor = make_actor(welcome, folder, device, line, clock, stop, _say, ended)
            first = max([welcome.episode, *(episode + 1 for episode in outbox.episodes)])
            actor.run(first)
        except DeviceError as error:
            raise UserError(str(error)) from error
        except (LearnerLost, RobotError) as error:
            waiting = len(outbox.episodes)
            print(
                f"robot-rl: {error}; {waiting} episodes wait in {config.spool}",
                file=sys.stderr,
                flush=True,
            )
            raise SystemExit(1) from error


def _say(text: str) -> None:
    print(f"actor: {text}", file=sys.stderr, flush=True)
