"""Whether another device computes a method's updates as the CPU does, up to rounding.

Both start from the same weights, and get the same batches and random numbers, which are drawn on the CPU. The
metrics of the first update show its losses, values and gradients. The weights are compared after a few
updates, by the distance between them over the distance that the CPU's have moved: Adam's first steps have the
size of the learning rate even where a gradient is as small as its rounding error.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor

from robot_rl.bench.learners import (
    ACTION,
    CAMERAS,
    IMAGE_SIZE,
    MEASURED,
    STATE,
    make_context,
    make_off_policy,
    off_policy_methods,
    small_options,
)
from robot_rl.data.dataset import Windows
from robot_rl.learning.config import BASE_FEATURES
from robot_rl.learning.success_detection import LabelledFrames, Split
from robot_rl.methods.bc import BCConfig, BCLearner
from robot_rl.methods.classifier import ClassifierConfig, ClassifierLearner
from robot_rl.methods.method import OffPolicyMethod
from robot_rl.methods.registry import METHODS
from robot_rl.methods.residual_ppo import ResidualPPOConfig, ResidualPPOMethod
from robot_rl.policies.bases.flow import FlowConfig, FlowPolicy
from robot_rl.policies.classifier import SuccessClassifier
from robot_rl.policies.nets.encoder import EncoderSpec

METRICS_TOLERANCE: Final = 1e-3
"""Largest relative difference of a metric of the first update."""
WEIGHTS_TOLERANCE: Final = 0.05
"""Largest distance of the weights, as a part of the distance that they have moved."""
_UPDATES: Final = 3
_SMALL: Final = 1e-3
"""Size below which metrics are compared in absolute terms."""
_ROWS, _BATCH, _WIDTH = 100, 32, 64
_ENVS, _STEPS = 4, 8
"""Environments of a PPO rollout, and steps of each."""


class Saved(Protocol):
    """A learner."""

    def state_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Case:
    """A learner with random data, and its next update, which returns metrics."""

    learner: Saved
    update: Callable[[], Mapping[str, Tensor]]


MakeCase = Callable[[torch.device], Case]


@dataclass(frozen=True)
class Difference:
    """How much the updates of two devices differ."""

    metrics: float
    """Largest relative difference of a metric of the first update."""
    weights: float
    """Distance of the weights after the updates, over the distance that the CPU's have moved."""
    metric: str
    """Which metric differs most."""

    @property
    def equal(self) -> bool:
        """Whether it is within the tolerances; not if anything is not finite."""
        return self.metrics <= METRICS_TOLERANCE and self.weights <= WEIGHTS_TOLERANCE


def cases() -> dict[str, MakeCase]:
    """Cases of every method: `<method>` learns from states, `<method>_images_<encoder>` from images."""
    made: dict[str, MakeCase] = {
        "bc": partial(_bc, images=False),
        "bc_images_conv": partial(_bc, images=True),
        "classifier_images_conv": _classifier,
        "residual_ppo": _ppo,
    }
    for name in off_policy_methods():
        for encoder in (None, "conv", BASE_FEATURES):
            made[f"{name}_images_{encoder}" if encoder else name] = partial(_off_policy, name, encoder)
    return made


def compare(make: MakeCase, device: torch.device) -> Difference:
    """Compare the updates of a device with those of the CPU.

    Convolutions on a GPU compute in float32 here; else they may round to 10 bits (TF32).
    """
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        (before, first, after), (_, other_first, other_after) = (
            _run(make(place)) for place in (torch.device("cpu"), device)
        )
    differences = {
        name: abs(value - other_first[name]) / max(abs(value), abs(other_first[name]), _SMALL)
        for name, value in first.items()
    }
    worst = max(differences, key=lambda name: np.nan_to_num(differences[name], nan=np.inf))
    moved = torch.linalg.vector_norm(after - before)
    apart = torch.linalg.vector_norm(other_after - after)
    return Difference(float(differences[worst]), float(apart / moved), worst)


def _run(case: Case) -> tuple[Tensor, dict[str, float], Tensor]:
    """The weights before, the metrics of the first update, and the weights after the last."""
    before = _weights(case.learner)
    first = {name: float(value) for name, value in case.update().items()}
    for _ in range(_UPDATES - 1):
        case.update()
    return before, first, _weights(case.learner)


def _weights(learner: Saved) -> Tensor:
    """All weights of a learner, without the states of its optimisers, float64 on the CPU."""
    found = [value.detach().flatten().cpu().double() for value in _floats(learner.state_dict())]
    return torch.cat(found)


def _floats(tree: object) -> Iterator[Tensor]:
    if isinstance(tree, Mapping):
        for value in () if "param_groups" in tree else tree.values():
            yield from _floats(value)
    elif isinstance(tree, Tensor) and tree.is_floating_point():
        yield tree


def _off_policy(name: str, encoder: str | None, device: torch.device) -> Case:
    kind = METHODS[name]
    assert issubclass(kind, OffPolicyMethod)
    config = kind.config_type(
        hidden=[_WIDTH, _WIDTH], batch_size=_BATCH, actor_every=1, **small_options(encoder, _ROWS)
    )
    made = make_off_policy(config, device, 0, images=encoder is not None)
    return Case(made.learner, lambda: made.learner.update(made.sampler.sample(0)))


def _ppo(device: torch.device) -> Case:
    config = ResidualPPOConfig(
        num_envs=_ENVS, rollout_steps=_STEPS, minibatches=2, epochs=2, target_kl=0.0, hidden=[_WIDTH]
    )
    method, context = ResidualPPOMethod(config), make_context(device, 0)
    torch.manual_seed(0)
    learner = method.build_learner(method.build_agent(context), context)
    rng = np.random.default_rng(0)
    sizes = {"state": (STATE,), "base": (ACTION,), "sample": (ACTION,), "log_prob": ()}
    rollout = {
        name: torch.from_numpy(rng.uniform(-1, 1, (_STEPS + 1, _ENVS, *size)).astype(np.float32))
        for name, size in sizes.items()
    }
    done = torch.from_numpy(rng.random((_STEPS, _ENVS)) < 1 / 4)
    rollout |= {"reward": done.float(), "terminated": done, "done": done}
    moved = {name: value.to(device) for name, value in rollout.items()}
    return Case(learner, lambda: learner.update(moved))


def _bc(device: torch.device, *, images: bool) -> Case:
    state, cameras = (MEASURED, CAMERAS) if images else (STATE, ())
    torch.manual_seed(0)
    policy = FlowPolicy(FlowConfig(), state, ACTION, cameras, IMAGE_SIZE if images else None)
    rng = np.random.default_rng(0)
    horizon = policy.spec.horizon
    windows = Windows(
        state=rng.uniform(-1, 1, (_ROWS, 1, state)).astype(np.float32),
        actions=rng.uniform(-1, 1, (_ROWS, horizon, ACTION)).astype(np.float32),
        mask=np.ones((_ROWS, horizon), np.float32),
        rows=np.arange(_ROWS)[:, None],
        images={camera: _random_images(rng) for camera in cameras},
    )
    learner = BCLearner(BCConfig(batch_size=_BATCH), policy, windows, device, 0)
    return Case(learner, learner.update)


def _classifier(device: torch.device) -> Case:
    torch.manual_seed(0)
    config = ClassifierConfig(batch_size=_BATCH)
    classifier = SuccessClassifier(EncoderSpec(0, CAMERAS, IMAGE_SIZE, config.encoder), config.hidden)
    rng = np.random.default_rng(0)
    shown = np.arange(_ROWS) % 2 == 0
    obs = {f"images.{camera}": _random_images(rng) for camera in CAMERAS}
    frames = LabelledFrames(
        {"state": np.zeros((_ROWS, 0), np.float32), **obs}, shown, ~shown, [slice(0, _ROWS)]
    )
    nothing = np.zeros(0, np.int64)
    parts = Split(np.zeros(1, np.int64), nothing, nothing)
    learner = ClassifierLearner(config, classifier, frames, parts, device, 0)
    return Case(learner, learner.update)


def _random_images(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(256, size=(_ROWS, *IMAGE_SIZE, 3), dtype=np.uint8)
