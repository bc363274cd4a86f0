"""What all off-policy methods share, each switch once."""

from dataclasses import dataclass, field

from robot_rl.policies.nets.encoder import ENCODERS

AGGREGATIONS = ("min", "mean", "quantile")
STATE_ALONE = "state"
"""The choice of an encoder that looks at no image."""


@dataclass
class OffPolicyConfig:
    """Off-policy learning with an ensemble of critics and prior data."""

    name: str = "???"
    """Name of the method."""
    steps: int = 20_000
    """Environment steps, warm-up included."""
    num_envs: int = 8
    """Environments stepped together."""
    warmup_steps: int = 2_000
    """First environment steps, in which only the frozen base acts (WSRL, arXiv 2412.07762)."""
    utd: float = 0.5
    """Critic updates per environment step."""
    critic_warmup: int = 1_000
    """Critic updates, made at once after these steps, before the actor's first one and before it acts."""
    actor_every: int = 2
    """Critic updates per actor update."""
    batch_size: int = 256
    """Transitions per update."""
    demo_ratio: float = 0.5
    """Part of each batch that comes from the demonstrations at first; 0 leaves them out."""
    demo_ratio_end: float | None = None
    """The same at last; if null, it stays as it is at first."""
    demo_ratio_steps: int = 20_000
    """Environment steps over which it moves from first to last."""
    success_weight: float = 1.0
    """How many times as often steps of successful episodes are drawn as those of failed ones."""
    n_step: int = 8
    """Steps of reward before the bootstrap."""
    gamma: float = 0.98
    """Discount per environment step."""
    bootstrap_truncation: bool = True
    """Whether value goes on where a time limit ended the episode."""
    reward_offset: float = 0.0
    """Added to each step's reward: -1 makes it -1 until success."""
    gripper_penalty: float = 0.0
    """Taken off the reward each time that the gripper is opened or closed (HIL-SERL: 0.02)."""
    num_critics: int = 10
    """Critics in the ensemble."""
    aggregation: str = "min"
    """How target values of `critics_per_target` critics become one: `min`, `mean` or lower `quantile`."""
    critics_per_target: int = 2
    """Critics of the ensemble, drawn at random, that make a target (REDQ)."""
    critic_loss: str = "mse"
    """`mse`, `huber` or `hl_gauss` (categorical, arXiv 2403.03950)."""
    layer_norm: bool = True
    """LayerNorm in the critics."""
    hidden: list[int] = field(default_factory=lambda: [128, 128])
    """Widths of the hidden layers of actor and critics."""
    actor_lr: float = 1e-4
    """Learning rate of the actor."""
    critic_lr: float = 3e-4
    """Learning rate of the critics."""
    tau: float = 0.01
    """Step of the target networks towards the online ones."""
    max_grad_norm: float = 1.0
    """Largest norm of a gradient."""
    encoder: str = "conv"
    """What looks at the images of `task.cameras`: `conv` or `vit`; `state` leaves them to the base."""
    replay_capacity: int = 200_000
    """Rows of the replay, at most."""

    def __post_init__(self) -> None:
        for name in ("demo_ratio", "demo_ratio_end"):
            ratio = getattr(self, name)
            if ratio is not None and not 0 <= ratio < 1:
                raise ValueError(f"method.{name}={ratio}: choose it in [0, 1)")
        if self.critics_per_target > self.num_critics:
            raise ValueError(
                f"method.critics_per_target={self.critics_per_target} is more than "
                f"method.num_critics={self.num_critics}"
            )
        if self.aggregation not in AGGREGATIONS:
            raise ValueError(
                f"method.aggregation={self.aggregation}: choose one of {', '.join(AGGREGATIONS)}"
            )
        if self.warmup_steps < 1:
            raise ValueError(
                f"method.warmup_steps={self.warmup_steps}: nothing is learned before the first step; "
                "choose 1 or more"
            )
        if self.warmup_steps >= self.steps:
            raise ValueError(
                f"method.warmup_steps={self.warmup_steps} leaves nothing of method.steps={self.steps}"
            )
        if self.encoder not in (*ENCODERS, STATE_ALONE):
            raise ValueError(f"method.encoder={self.encoder}: choose {', '.join(ENCODERS)} or {STATE_ALONE}")
        if not 0 <= self.gripper_penalty < 1:
            raise ValueError(f"method.gripper_penalty={self.gripper_penalty:g}: choose it in [0, 1)")
        if self.success_weight < 1:
            raise ValueError(f"method.success_weight={self.success_weight}: choose 1 or more")

    @property
    def demo_ratios(self) -> tuple[float, float]:
        """The part of a batch that comes from the demonstrations, at first and at last."""
        return self.demo_ratio, self.demo_ratio if self.demo_ratio_end is None else self.demo_ratio_end

    @property
    def value_range(self) -> tuple[float, float]:
        """Smallest and largest return.

        Success gives 1 once and ends, every step gives the offset and may cost a switch of the gripper.
        """
        lowest, highest = self.reward_offset - self.gripper_penalty, 1 + self.reward_offset
        return min(lowest / (1 - self.gamma), lowest, 0.0), max(highest, 0.0)
