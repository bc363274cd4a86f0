"""Options of `imagination=…`: how the transitions of a world model are used, and those of each model."""

from dataclasses import dataclass, field

RETURNS = ("transition", "expansion")


@dataclass
class ImaginationConfig:
    """Imagined transitions from a world model that is fitted during training: options of all models."""

    name: str = ""
    """Name of the world model."""
    chunks: int = 2
    """Most action chunks of an imagined branch."""
    returns: str = "transition"
    """What critics learn from a branch: every chunk as a `transition` (MBPO, arXiv 1906.08253), or
    returns over 1 to `chunks` chunks from its real first state (value `expansion`, arXiv 1803.00101)."""
    trace: float = 0.8
    """Weight of the return over one more chunk relative to that over one less (lambda), for `expansion`."""
    share: float = 0.5
    """Largest fraction of a batch that is imagined, in [0, 1); the gate raises it from 0 in steps of 0.05."""
    refit_every: int = 10
    """Episodes between two refits of the model."""
    fit_updates: int = 150
    """Gradient steps of a refit."""
    first_updates: int = 1000
    """Gradient steps of the first fit."""
    pool: int = 30
    """Newest tested episodes that set thresholds and gate; nothing is imagined before there are as many."""
    branches: int = 256
    """Branches that are imagined at once."""
    uses: int = 40
    """How often an imagined transition is learned from, on average."""
    recent: float = 0.5
    """Share of branches that begin in the newest episodes."""
    key_moments: float = 0.25
    """Share that begins shortly before the end of an episode, gripper commands and jumps of the value."""
    demonstrations: float = 0.15
    """Share that begins in demonstrations; the rest begins anywhere in the run."""
    ignore_uncertainty: bool = False
    """For comparison: no branch ends because the model is uncertain, and no transition weighs less."""
    planning: bool = False
    """While exploring, rank the candidates of `residual_chunk` or `expo` by a predicted chunk plus value."""

    @property
    def context_chunks(self) -> int:
        """Chunks before each that the model looks at; 0 for a model without a memory."""
        return 0

    def __post_init__(self) -> None:
        self._check_at_least_1("chunks", "fit_updates", "first_updates", "branches", "uses")
        for name in ("refit_every", "pool"):
            if getattr(self, name) < 2:
                raise ValueError(f"imagination.{name}={getattr(self, name)}: choose 2 or more episodes")
        if self.planning and self.ignore_uncertainty:
            raise ValueError(
                "imagination.ignore_uncertainty=true is about branches, and imagination.planning=true leaves "
                "out uncertain candidates: choose one of them"
            )
        if self.returns not in RETURNS:
            raise ValueError(f"imagination.returns={self.returns}: choose {' or '.join(RETURNS)}")
        for name in ("share", "trace"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"imagination.{name}={getattr(self, name)}: choose it in [0, 1)")
        shares = (self.recent, self.key_moments, self.demonstrations)
        if min(shares) < 0 or sum(shares) > 1:
            raise ValueError(
                "imagination.recent, key_moments and demonstrations are shares of the branches: "
                "choose them at least 0, with a sum of at most 1"
            )

    def _check_at_least_1(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) < 1:
                raise ValueError(f"imagination.{name}={getattr(self, name)}: choose 1 or more")


@dataclass
class StateModelConfig(ImaginationConfig):
    """Imagined transitions from an ensemble of networks that predicts states."""

    name: str = "state"
    """Name of the world model."""
    members: int = 5
    """Networks in the ensemble."""
    hidden: list[int] = field(default_factory=lambda: [256, 256])
    """Widths of their hidden layers."""
    lr: float = 1e-3
    """Learning rate of the model."""
    batch_size: int = 128
    """Windows of each network per gradient step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least_1("batch_size")
        if min(self.hidden, default=0) < 1:
            raise ValueError(f"imagination.hidden={self.hidden}: give the widths of one hidden layer or more")
        if self.members < 2:
            raise ValueError(
                f"imagination.members={self.members}: disagreement needs 2 networks or more; 5 is usual"
            )


@dataclass
class LatentModelConfig(StateModelConfig):
    """Imagined transitions from an ensemble of networks that predicts the state and the base's features."""

    name: str = "latent"
    """Name of the world model."""
    lr: float = 3e-3
    """Learning rate of the model."""
    batch_size: int = 64
    """Windows of each network per gradient step."""
    latent: int = 64
    """Principal components of the base's features that the networks predict."""
    history: int = 4
    """Chunks before the present one that the networks remember."""

    @property
    def context_chunks(self) -> int:
        return self.history

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least_1("latent", "history")


@dataclass
class RemoteModelConfig(ImaginationConfig):
    """Imagined transitions from a world model that a server predicts with, perhaps on another machine."""

    name: str = "remote"
    """Name of the world model."""
    address: str = "???"
    """Address of the model's server: `ipc:///directory`, or `tcp://host:port`."""
    keys: str | None = None
    """File of this run's keys for the server, from `robot-rl robot keys`; required on a network."""
    timeout: float = 600.0
    """Longest wait for one answer, such as that to a fit, in s."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.timeout > 0:
            raise ValueError(f"imagination.timeout={self.timeout:g}: it must be more than 0")
