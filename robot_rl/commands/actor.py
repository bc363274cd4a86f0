"""Act for a training run whose learner is another process (`robot-rl train hil=on`).

The learner starts an actor on its own machine. If the robot is attached to another machine, start this
command there: task, policy and operator come from the learner. Each of several robots has an actor, with its
own name and options. Finished episodes stay in the spool until the learner has them in a checkpoint; the same
command resumes.
"""

import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch

from robot_rl.cli.signals import stop_on_signal
from robot_rl.errors import UserError, as_user_errors
from robot_rl.hardware.clock import MonotonicClock
from robot_rl.hardware.connection import RobotError
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.security import load_own_keys
from robot_rl.hardware.teleop.device import DeviceError
from robot_rl.hil.link.client import LearnerClient, LearnerLost
from robot_rl.hil.link.outbox import Outbox, locked_spool
from robot_rl.hil.make_actor import make_actor
from robot_rl.saved_policies.loading import choose_device

_OWN: Final = ("robot", "robot_keys", "operator", "reset", "success")
"""Options that replace the learner's `hil.…`."""


@dataclass
class Config:
    learner: str = "???"
    """Address of the learner: its `hil.link`."""
    name: str = ""
    """Name of this actor in a run with several (`hil.actors`): `actor1`, `actor2`, …; with keys, that of the
    key."""
    spool: str = "spool"
    """Folder for finished episodes that the learner has not saved yet; one per run and actor."""
    keys: str | None = None
    """File of this actor's keys, made by `robot-rl robot keys`; required for a learner on a network."""
    robot: str | None = None
    """Address of this actor's robot server; null takes the learner's `hil.robot`."""
    robot_keys: str | None = None
    """File of this actor's keys for the robot; null takes the learner's `hil.robot_keys`."""
    operator: str | None = None
    """Operator who may take over here; null takes the learner's `hil.operator`."""
    operator_device: dict[str, Any] = field(default_factory=dict)
    """Settings of this operator's device, as `device.…` of `robot-rl teleop`."""
    reset: str | None = None
    """Reset of the robot between episodes; null takes the learner's `hil.reset`."""
    success: str | None = None
    """`method=classifier` run that judges success here; null takes the learner's `hil.success`."""
    wait: bool = True
    """Whether to wait for a learner that has not started."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto` for a GPU if there is one."""
    threads: int = 1
    """CPU threads of torch."""

    def __post_init__(self) -> None:
        if self.name and self.keys:
            raise ValueError(
                f"name={self.name}: an actor with keys has the name of its key; leave name=… or keys=… out"
            )

    @property
    def own(self) -> dict[str, Any]:
        """Options of `HilConfig` that replace the learner's."""
        given = {name: value for name in _OWN if (value := getattr(self, name))}
        if self.operator or self.operator_device:
            # Settings of the learner's device do not fit another one.
            given["device"] = self.operator_device
        return given


def run(config: Config) -> None:
    torch.set_num_threads(config.threads)
    clock = MonotonicClock()
    with ExitStack() as resources:
        stop = resources.enter_context(stop_on_signal())
        try:
            with as_user_errors():
                device = choose_device(config.device)
                address = parse(config.learner)
                spool = resources.enter_context(locked_spool(Path(config.spool), stop))
                for path in spool.set_aside_damaged():
                    _say(f"{path} lacks the end of its episode, and is not sent")
                outbox = Outbox(spool)
                keys = load_own_keys(config.keys)
                client = LearnerClient(address, keys, outbox, clock, config.name)
                resources.callback(client.close)
                if config.wait:
                    _say(f"waiting for the learner at {config.learner}")
                welcome = client.handshake(stop, wait=config.wait)
                if welcome is None:
                    raise KeyboardInterrupt
                folder = Path(resources.enter_context(TemporaryDirectory(prefix="actor-")))
                corrected = Path(config.spool) / "classifier"
                actor = make_actor(
                    welcome, config.own, folder, corrected, device, client, clock, stop, _say, resources
                )
            first = max([welcome.episode, *(episode + 1 for episode in outbox.episodes)])
            actor.run(first)
            if stop():
                raise KeyboardInterrupt
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
