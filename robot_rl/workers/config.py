"""Options of `workers=ray`: environments on the machines of a Ray cluster."""

from dataclasses import dataclass
from typing import Any, Final

from robot_rl.policy_client.config import RemoteConfig

STEPS: Final = 20
"""Control steps of each environment between two messages of a worker that is not in lockstep."""


@dataclass
class SimulationsConfig:
    """Environments in processes on the machines of a Ray cluster."""

    count: int = 2
    """Number of processes, each of which takes one core and an equal part of the environments."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"workers.count={self.count}: choose 1 or more")


@dataclass
class WorkersConfig(SimulationsConfig):
    """Environments in processes on the machines of a Ray cluster, which may act with copies of the policy."""

    lockstep: bool = False
    """Whether the learner's process chooses every action, and waits for all workers at every step: the
    results are those of one process. Otherwise workers act with copies of the policy."""
    max_age: int = 20_000
    """Updates by which the weights that acted may be older than the learner's when the steps arrive; steps
    of older weights are dropped, with their unfinished episodes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_age < 1:
            raise ValueError(f"workers.max_age={self.max_age}: choose 1 or more")


def check_workers_config(config: WorkersConfig, method: Any, base: Any) -> None:
    """Raises ValueError if workers cannot act for this method, or with this base."""
    # Imported here: it imports torch, which takes seconds, and collecting from experts needs none.
    from robot_rl.learning.config import OffPolicyConfig

    if config.lockstep:
        return
    if not isinstance(method, OffPolicyConfig):
        raise ValueError(
            f"method={method.name} learns from steps of the newest weights alone: add workers.lockstep=true"
        )
    # The updates of one message of every worker, while two of each are on the way.
    if config.max_age < (least := int(2 * STEPS * method.num_envs * method.utd)):
        raise ValueError(
            f"workers.max_age={config.max_age}: choose {least} or more with these method options"
        )
    if isinstance(base, RemoteConfig):
        raise ValueError("base=remote is asked by the learner's process alone: add workers.lockstep=true")
    if counts := method.one_actor_only:
        raise ValueError(
            f"{counts} counts the steps of one acting policy: leave it out, or add workers.lockstep=true"
        )
