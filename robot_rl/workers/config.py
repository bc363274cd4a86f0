"""Options of `workers=ray`: environments on the machines of a Ray cluster."""

from dataclasses import dataclass


@dataclass
class WorkersConfig:
    """Environments in processes on the machines of a Ray cluster, in lockstep with the learner."""

    count: int = 2
    """Number of processes, each of which takes one core and an equal part of `method.num_envs`."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"workers.count={self.count}: choose 1 or more")
