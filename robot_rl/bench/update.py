"""Duration of a learner update: ours, Stable-Baselines3's, and the lower bound set by matrix products.

Both compute the same SAC update (`sac_<width>_e<E>`): actor and E critics of three hidden
layers with ReLU and without LayerNorm, the minimum of all E critics in target and actor, entropy in
the target, one step each of critics, actor and temperature, the target update, and sampling the batch.

Lower bound (floor): the multiply-adds of our update's matrix products over the rate at which this machine
multiplies matrices of the hidden layers' shapes. With batch B, width w, state S, action A, a forward
pass costs

    f = 2B ((S + A) w + 2 w^2 + w)      per critic
    a = 2B (S w + 2 w^2 + 2 A w)        the actor

and an update (the derivatives with respect to weights and to inputs cost as much as a forward pass each):

    target    a + E f
    critics   3 E f - E 2B (S + A) w    no derivative with respect to the batch
    actor     3 a - 2B S w  +  E f + f  each row's derivative goes through its smallest critic only

On a GPU the last f is E f: the host does not know which critic is the smallest.

Methods are measured with their default options, on states or, with an image `encoder`, on two cameras
of 84 x 84 pixels: an update then shifts and encodes images or, with `encoder=base`, reads stored features.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch

from robot_rl.bench.learners import ACTION, ROWS, STATE, fill_replay, make_off_policy, small_options
from robot_rl.bench.timing import Action, take_turns
from robot_rl.data.replay_buffer import ReplayBuffer
from robot_rl.learning.critics import Critics
from robot_rl.learning.sampling import MixedSampler, Window
from robot_rl.learning.soft_actor import SACConfig, SACLearner
from robot_rl.methods.method import OffPolicyMethod
from robot_rl.methods.registry import METHODS
from robot_rl.policies.nets.actors import GaussianActor
from robot_rl.policies.nets.encoder import EncoderSpec, ObservationEncoder

LAYERS = 3
"""Hidden layers of every network."""


@dataclass(frozen=True)
class Size:
    """Size of networks and batch."""

    width: int
    num_critics: int
    batch: int = 256

    @property
    def name(self) -> str:
        return f"{self.width}_e{self.num_critics}"


@dataclass(frozen=True)
class UpdateSpeed:
    """Measured update times, medians in ms; None where there is nothing to compare with."""

    ours_ms: float
    """One update of ours, sampling included."""
    sb3_ms: float | None = None
    """One update of Stable-Baselines3."""
    floor_ms: float | None = None
    """Lower bound: our update's matrix products at the measured rate."""
    speedup: float | None = None
    """`sb3_ms / ours_ms`."""
    over_floor: float | None = None
    """`ours_ms / floor_ms`."""
    gflop: float | None = None
    """Operations of our update's matrix products, in 1e9."""
    gflop_per_s: float | None = None
    """Measured rate of the matrix products."""
    processor_share: float | None = None
    """Fraction of the time in which this process had a processor; well below 1, others were running."""


def sb3_missing() -> str | None:
    """How to install Stable-Baselines3 if it is missing, else None."""
    try:
        import stable_baselines3  # noqa: F401
    except ImportError:
        return (
            "Stable-Baselines3 is not installed; to compare with it: "
            ".venv/bin/uv pip install -c constraints.txt -e '.[bench]'"
        )
    return None


def update_gflop(size: Size, *, routed: bool = True) -> float:
    """1e9 floating-point operations of our update's matrix products; see the module's docstring.

    Args:
        size: networks and batch.
        routed: whether the actor's derivative goes through each row's smallest critic only.
    """
    b, w, e = size.batch, size.width, size.num_critics
    inner = (LAYERS - 1) * w * w
    critic = 2 * b * ((STATE + ACTION) * w + inner + w)
    actor = 2 * b * (STATE * w + inner + 2 * ACTION * w)
    total = actor + e * critic
    total += e * (3 * critic - 2 * b * (STATE + ACTION) * w)
    total += 3 * actor - 2 * b * STATE * w + e * critic + (1 if routed else e) * critic
    return total / 1e9


def measure_sac(size: Size, seconds: float, device: torch.device, seed: int = 0) -> UpdateSpeed:
    """Measure SAC updates of ours and of Stable-Baselines3, and the matrix products alone, in turns."""
    candidates = {"ours": _ours(size, device, seed), "products": _products(size, device)}
    if not sb3_missing():
        candidates["sb3"] = _sb3(size, device, seed)
    wall, used = time.monotonic(), time.thread_time()
    times = _measure(candidates, seconds, device)
    share = (time.thread_time() - used) / (time.monotonic() - wall)
    # Three products, [E, B, w] x [E, w, w] and the two of its derivative.
    rate = 3 * 2 * size.num_critics * size.batch * size.width**2 / times["products"] / 1e6
    gflop = update_gflop(size, routed=device.type == "cpu")
    floor, ours, sb3 = 1e3 * gflop / rate, times["ours"], times.get("sb3")
    return UpdateSpeed(ours, sb3, floor, sb3 and sb3 / ours, ours / floor, gflop, rate, share)


def measure_method(
    name: str, size: Size, seconds: float, device: torch.device, seed: int = 0, *, encoder: str | None = None
) -> UpdateSpeed:
    """Measure the learner of a method with its default options, on random transitions of Lift.

    Work that is done only every few updates is averaged over them.

    Args:
        name: name of the method.
        size: of networks and batch.
        seconds: approximate duration in s.
        device: of the learner and its replay.
        seed: of weights and transitions.
        encoder: value of `method.encoder` to learn from two cameras; None to learn from the state.
    """
    kind = METHODS[name]
    assert issubclass(kind, OffPolicyMethod)
    config = kind.config_type(
        hidden=[size.width] * LAYERS,
        num_critics=size.num_critics,
        critics_per_target=min(2, size.num_critics),
        batch_size=size.batch,
        **small_options(encoder),
    )
    made = make_off_policy(config, device, seed, images=encoder is not None)
    block = config.actor_every

    def updates() -> None:
        for _ in range(block):
            made.learner.update(made.sampler.sample(0))

    return UpdateSpeed(_measure({"ours": updates}, seconds, device)["ours"] / block)


def _measure(candidates: Mapping[str, Action], seconds: float, device: torch.device) -> dict[str, float]:
    whole = {name: _finished(action, device) for name, action in candidates.items()}
    take_turns(whole, 0.0, least=2)  # warm-up: first use initialises caches
    return take_turns(whole, seconds, block=2)


def _finished(action: Action, device: torch.device) -> Action:
    """The action, on a GPU followed by waiting for its kernels."""
    if device.type != "cuda":
        return action

    def finished() -> None:
        action()
        torch.cuda.synchronize(device)

    return finished


def _ours(size: Size, device: torch.device, seed: int) -> Action:
    torch.manual_seed(seed)
    config = SACConfig(
        name="sac",
        batch_size=size.batch,
        critic_warmup=0,
        actor_every=1,
        n_step=1,
        gamma=0.99,
        num_critics=size.num_critics,
        critics_per_target=size.num_critics,
        aggregation="min",
        actor_aggregation="min",
        backup_entropy=True,
        layer_norm=False,
        hidden=[size.width] * LAYERS,
        actor_lr=3e-4,
        critic_lr=3e-4,
        tau=0.005,
        max_grad_norm=float("inf"),
    )
    actor = GaussianActor(STATE, ACTION, config.hidden, layer_norm=False)
    critics = Critics(config, ObservationEncoder(EncoderSpec(STATE)), ACTION)
    learner = SACLearner(config, critics, actor, ACTION, device, seed)
    replay = ReplayBuffer(ROWS, 1, ACTION, {"state": ((STATE,), torch.float32)}, device)
    fill_replay(replay, np.random.default_rng(seed))
    sampler = MixedSampler(config, replay, None, Window(), seed)
    return lambda: learner.update(sampler.sample(0))


def _sb3(size: Size, device: torch.device, seed: int) -> Action:
    from stable_baselines3 import SAC
    from stable_baselines3.common.logger import Logger

    model = SAC(
        "MlpPolicy",
        _Unused(),
        buffer_size=ROWS,
        batch_size=size.batch,
        policy_kwargs={"net_arch": [size.width] * LAYERS, "n_critics": size.num_critics},
        device=device,
        seed=seed,
    )
    model.set_logger(Logger(None, []))
    rng = np.random.default_rng(seed)
    for _ in range(ROWS):
        state = rng.uniform(-1, 1, (1, STATE)).astype(np.float32)
        action = rng.uniform(-1, 1, (1, ACTION)).astype(np.float32)
        assert model.replay_buffer is not None
        model.replay_buffer.add(state, state, action, np.zeros(1), np.zeros(1), [{}])
    return lambda: model.train(gradient_steps=1, batch_size=size.batch)


def _products(size: Size, device: torch.device) -> Callable[[], None]:
    """The matrix products of a hidden layer, forward and backward, into preallocated memory."""
    e, b, w = size.num_critics, size.batch, size.width
    x, weight = torch.randn(e, b, w, device=device), torch.randn(e, w, w, device=device)
    like_x, like_weight = torch.empty_like(x), torch.empty_like(weight)

    def products() -> None:
        torch.bmm(x, weight, out=like_x)
        torch.bmm(x, weight.mT, out=like_x)
        torch.bmm(x.mT, like_x, out=like_weight)

    return products


class _Unused(gym.Env):
    """An environment with Lift's sizes that is never stepped."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (STATE,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (ACTION,), np.float32)
