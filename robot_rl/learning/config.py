"""Options shared by all off-policy methods."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from robot_rl.policies.nets.encoder import ENCODERS

AGGREGATIONS = ("min", "mean", "quantile")
STATE_ALONE = "state"
"""Value of `encoder` that uses no images."""
BASE_FEATURES = "base"
"""Value of `encoder` that uses the features of the frozen base instead of images."""

_USUAL_SCALES = {
    "residual_scale": "0.1 to 0.5 is usual",
    "edit_scale": "0.5, or 0.2 with bc_weight=0",
    "gripper_scale": "0.3 to 1 is usual",
}
STEPS, DECISIONS = "steps", "decisions"
"""Values of `windows`."""


@dataclass
class OffPolicyConfig:
    """Off-policy learning with an ensemble of critics."""

    name: str = "???"
    """Name of the method."""
    steps: int = 20_000
    """Environment steps, including the warm-up."""
    num_envs: int = 8
    """Number of environments stepped together."""
    warmup_steps: int = 2_000
    """Environment steps at the start in which only the frozen base acts (WSRL, arXiv 2412.07762)."""
    utd: float = 0.5
    """Critic updates per environment step."""
    critic_warmup: int = 1_000
    """Critic updates made right after the warm-up, before the actor is trained or acts."""
    actor_every: int = 2
    """Critic updates per actor update."""
    batch_size: int = 256
    """Transitions per update."""
    success_weight: float = 1.0
    """Sampling weight of steps of successful episodes, relative to failed and open ones; at least 1."""
    n_step: int = 8
    """Steps of the n-step return."""
    gamma: float = 0.98
    """Discount factor per environment step."""
    bootstrap_truncation: bool = True
    """Whether to bootstrap where a time limit ended the episode."""
    reward_offset: float = 0.0
    """Constant added to each step's reward: -1 gives -1 per step until success."""
    gripper_penalty: float = 0.0
    """Reward penalty for each opening or closing of the gripper, in [0, 1) (HIL-SERL: 0.02)."""
    num_critics: int = 10
    """Critics in the ensemble."""
    aggregation: str = "min"
    """Aggregation of the target values of `critics_per_target` critics: `min`, `mean` or lower `quantile`."""
    critics_per_target: int = 2
    """Randomly chosen critics used in each target (REDQ), at most `num_critics`."""
    critic_loss: str = "mse"
    """Critic loss: `mse`, `huber` or `hl_gauss` (categorical, arXiv 2403.03950)."""
    layer_norm: bool = True
    """Whether the critics have LayerNorm, and the actors of rlpd, dsrl and dsrl_na; the others always do."""
    hidden: list[int] = field(default_factory=lambda: [128, 128])
    """Widths of the hidden layers of actor and critics."""
    actor_lr: float = 1e-4
    """Learning rate of the actor."""
    critic_lr: float = 3e-4
    """Learning rate of the critics."""
    tau: float = 0.01
    """Rate of the Polyak update of target networks."""
    max_grad_norm: float = 1.0
    """Gradient norm above which gradients are clipped."""
    encoder: str = "conv"
    """Image encoder of `task.cameras`: `conv`, `spatial` (spatial softmax) or `vit`; `base` for the frozen
    features of the base, which are stored instead of images; `state` uses no images (the base may)."""
    feature_copies: int = 3
    """With `encoder=base`, stored versions of each observation's features: of the images as they are and of
    randomly shifted ones; each update draws one."""
    replay_capacity: int = 200_000
    """Capacity of the replay buffer in steps."""

    def __post_init__(self) -> None:
        counts = ("num_envs", "batch_size", "num_critics", "critics_per_target", "actor_every")
        check_counts(self, *counts)
        check_hidden_and_gamma(self.hidden, self.gamma)
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
        if self.critic_warmup > 0 and self.warmup_steps <= self.num_envs:
            raise ValueError(
                f"method.warmup_steps={self.warmup_steps}: no step is complete yet when the critics' warm-up "
                f"begins; choose more than method.num_envs={self.num_envs}"
            )
        if self.warmup_steps >= self.steps:
            raise ValueError(
                f"method.warmup_steps={self.warmup_steps} leaves nothing of method.steps={self.steps}"
            )
        if not 0 < self.utd < float("inf"):
            raise ValueError(f"method.utd={self.utd}: updates per environment step must be more than 0")
        check_max_grad_norm(self.max_grad_norm)
        if not 0 < self.tau <= 1:
            raise ValueError(f"method.tau={self.tau}: choose it in (0, 1]; 0.005 to 0.01 is usual")
        check_not_negative(self, "critic_warmup", "actor_lr", "critic_lr")
        if abs(self.reward_offset) == float("inf"):
            raise ValueError(f"method.reward_offset={self.reward_offset}: it must be finite")
        if self.encoder not in (*ENCODERS, BASE_FEATURES, STATE_ALONE):
            known = ", ".join((*ENCODERS, BASE_FEATURES))
            raise ValueError(f"method.encoder={self.encoder}: choose {known} or {STATE_ALONE}")
        if self.feature_copies < 1:
            raise ValueError(f"method.feature_copies={self.feature_copies}: 2 to 4 is usual")
        if not 0 <= self.gripper_penalty < 1:
            raise ValueError(f"method.gripper_penalty={self.gripper_penalty:g}: choose it in [0, 1)")
        if self.replay_capacity < 2 * self.num_envs:
            raise ValueError(
                f"method.replay_capacity={self.replay_capacity}: a transition takes two rows in each of "
                f"method.num_envs={self.num_envs} environments; choose much more"
            )
        # Rows are drawn by rejection.
        if not 1 <= self.success_weight <= 100:
            raise ValueError(f"method.success_weight={self.success_weight}: choose 1 to 100")

    @property
    def uses_demonstrations(self) -> bool:
        """Whether batches have transitions of demonstrations."""
        return False

    def demo_fraction(self, step: int) -> float:
        """Fraction of a batch from demonstrations at an environment step."""
        del step
        return 0.0

    @property
    def one_actor_only(self) -> str:
        """An option in use that counts the steps of one acting policy, so that no other may act, or ""."""
        return ""

    @property
    def value_range(self) -> tuple[float, float]:
        """Smallest and largest possible return.

        Success gives 1 and ends the episode; each step gives the offset minus a possible gripper penalty.
        """
        lowest, highest = self.reward_offset - self.gripper_penalty, 1 + self.reward_offset
        forever = 1 - self.gamma
        return min(lowest / forever, lowest, 0.0), max(highest, self.reward_offset / forever, 0.0)


@dataclass
class PriorDataConfig(OffPolicyConfig):
    """Off-policy learning from demonstrations too (RLPD, arXiv 2302.02948)."""

    demo_ratio: float = 0.5
    """Fraction of each batch sampled from demonstrations at the start, in [0, 1); 0 uses none."""
    demo_ratio_end: float | None = None
    """Fraction at the end, in [0, 1); null keeps `demo_ratio`."""
    demo_ratio_steps: int = 20_000
    """Environment steps over which the fraction changes from start to end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "demo_ratio_steps")
        for name in ("demo_ratio", "demo_ratio_end"):
            ratio = getattr(self, name)
            if ratio is not None and not 0 <= ratio < 1:
                raise ValueError(f"method.{name}={ratio}: choose it in [0, 1)")

    @property
    def _demo_ratios(self) -> tuple[float, float]:
        """Fraction at the start and at the end."""
        return self.demo_ratio, self.demo_ratio if self.demo_ratio_end is None else self.demo_ratio_end

    @property
    def uses_demonstrations(self) -> bool:
        return max(self._demo_ratios) > 0

    def demo_fraction(self, step: int) -> float:
        first, last = self._demo_ratios
        return first + min(step / self.demo_ratio_steps, 1.0) * (last - first)


@dataclass
class ChunkConfig(PriorDataConfig):
    """Off-policy learning of executed chunks."""

    windows: str = STEPS
    """Windows of the run's steps begin and end at `steps`, any of them, or at `decisions` alone, where a
    chunk starts: then the base is asked, and cameras are rendered, once per chunk."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.windows not in (STEPS, DECISIONS):
            raise ValueError(f"method.windows={self.windows}: choose {STEPS} or {DECISIONS}")


def check_counts(config: object, *names: str) -> None:
    """Check options that are numbers of something. Raises ValueError if one is less than 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise ValueError(f"method.{name}={getattr(config, name)}: choose 1 or more")


def check_not_negative(config: object, *names: str) -> None:
    """Check options that mean something from 0 on. Raises ValueError if one is negative or infinite."""
    for name in names:
        if not 0 <= getattr(config, name) < float("inf"):
            raise ValueError(f"method.{name}={getattr(config, name)}: choose 0 or more")


def check_max_grad_norm(norm: float) -> None:
    """Raises ValueError if gradients would be clipped to nothing, or turned round."""
    if not norm > 0:
        raise ValueError(f"method.max_grad_norm={norm}: choose more than 0")


def check_hidden_and_gamma(hidden: Sequence[int], gamma: float) -> None:
    """Check the options `hidden` and `gamma`.

    Raises:
        ValueError: if there is no hidden layer, one has no unit, or the discount factor is outside [0, 1).
    """
    if not hidden or min(hidden) < 1:
        raise ValueError(f"method.hidden={list(hidden)}: give the width of one hidden layer or more")
    if not 0 <= gamma < 1:
        raise ValueError(f"method.gamma={gamma:g}: choose it in [0, 1)")


def check_scales(config: object, *names: str) -> None:
    """Check the scales of what RL adds to the base's actions.

    Raises:
        ValueError: if one is outside (0, 2], where it does nothing or saturates every action.
    """
    for name in names:
        if not 0 < (value := getattr(config, name)) <= 2:
            raise ValueError(f"method.{name}={value}: choose it in (0, 2]; {_USUAL_SCALES[name]}")
