"""A point that has to reach the origin: a small task whose dynamics are known exactly.

    s' = s + STEP a,  success where |s| < RADIUS

The base moves to a place beside the origin, with noise, so that it succeeds in a part of the episodes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from robot_rl.data.replay_buffer import ReplayBuffer
from robot_rl.envs.action import ActionDim, spec_to_list
from robot_rl.envs.env_group import EnvInterface, EpisodeStart
from robot_rl.envs.observation import ObservationSpec, observation_space
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.vector import TaskVectorEnv
from robot_rl.evaluation.evaluate import evaluate
from robot_rl.imagination.branches import TaskReward
from robot_rl.imagination.config import ImaginationConfig, LatentModelConfig
from robot_rl.imagination.episodes import Episode
from robot_rl.imagination.imagination import Imagination
from robot_rl.imagination.latent_model import LatentModel, LatentShape
from robot_rl.imagination.layout import Layout
from robot_rl.imagination.state_model import Shape, StateModel
from robot_rl.imagination.values import BaseSampler
from robot_rl.imagination.world_model import ChunkStart, Prediction, WorldModel
from robot_rl.learning.learner import ChunkLearner
from robot_rl.learning.sampling import MixedSampler
from robot_rl.methods.method import Agent, AgentContext, OffPolicyMethod
from robot_rl.methods.registry import METHODS
from robot_rl.methods.replay_fields import replay_fields
from robot_rl.methods.residual_chunk import ResidualChunkConfig, ResidualChunkMethod
from robot_rl.policies.bases.base_policy import BasePolicy, BaseSpec, Chunk
from robot_rl.policies.nets.encoder import EncoderSpec
from robot_rl.saved_policies.loading import acting_policy
from robot_rl.training.components import OffPolicyComponents, replay_rows
from robot_rl.training.logger import RunLogger
from robot_rl.training.loop import Intervals, Run
from robot_rl.training.off_policy import train_off_policy

STEP, RADIUS, HORIZON = 0.05, 0.04, 40
CHUNK = 4
_OFFSET = torch.tensor([0.1, 0.05])
_OBSERVED = ObservationSpec(("position",), (2,))
_ACTIONS = tuple(ActionDim(name, "delta", "m", STEP, "world") for name in "xy")
ENVIRONMENT = {
    "task": "point",
    "observation_spec": _OBSERVED.as_dict(),
    "action_spec": spec_to_list(_ACTIONS),
}


class PointEnvs(TaskVectorEnv):
    """N points; a camera sees each as a pixel whose colour is its position."""

    def __init__(self, num_envs: int, *, camera: bool = False) -> None:
        observed = replace(_OBSERVED, cameras=("above",), image_size=(1, 1)) if camera else _OBSERVED
        interface = EnvInterface(
            TaskConfig(name="point", env="Point"),
            {**ENVIRONMENT, "observation_spec": observed.as_dict()},
            observation_space(observed),
            gym.spaces.Box(-1, 1, (2,), np.float32),
            observed,
            _ACTIONS,
        )
        super().__init__(num_envs, interface)
        self._state = np.zeros((num_envs, 3))
        """Position and steps so far."""

    def get_states(self) -> list[np.ndarray]:
        return list(self._state.copy())

    def _reset_envs(self, starts: Mapping[int, EpisodeStart]) -> None:
        for index, (seed, _) in starts.items():
            angle = np.random.default_rng(seed).uniform(0, 2 * np.pi)
            self._state[index] = 0.5 * np.cos(angle), 0.5 * np.sin(angle), 0
        self._write()

    def _step_envs(self) -> None:
        buffers = self._buffers
        self._state[:, :2] += STEP * buffers.action
        self._state[:, 2] += 1
        buffers.success[:] = np.linalg.norm(self._state[:, :2], axis=1) < RADIUS
        buffers.reward[:] = buffers.terminated[:] = buffers.success
        buffers.truncated[:] = (self._state[:, 2] >= HORIZON) & ~buffers.success
        self._write()

    def _set_env_states(self, states: Mapping[int, np.ndarray]) -> None:
        for index, state in states.items():
            self._state[index] = state
        self._write()

    def _write(self) -> None:
        self._buffers.obs["state"][:] = self._state[:, :2]
        if "images.above" in self._buffers.obs:
            colour = (127.5 * (self._state[:, :2] + 1)).clip(0, 255)
            self._buffers.obs["images.above"][..., :2] = colour[:, None, None]


class PointBase(BasePolicy):
    """Moves to a place beside the origin; a step of noise on each action."""

    spec = BaseSpec(
        2, 2, horizon=CHUNK, execute=CHUNK, obs_steps=1, noise_shape=(CHUNK, 2), deterministic=True
    )

    def __init__(self) -> None:
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(1))

    @torch.no_grad()
    def sample(
        self,
        obs: Mapping[str, Tensor],
        *,
        noise: Tensor | None = None,
        num_samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> Chunk:
        state = obs["state"][:, -1]
        if noise is None:
            noise = self.draw_noise(len(state), num_samples, generator)
        goal = (_OFFSET - state)[:, None, None] / STEP
        steps = torch.arange(CHUNK)[:, None]
        toward = goal / goal.norm(dim=-1, keepdim=True).clamp(min=1)
        left = goal.norm(dim=-1, keepdim=True) > steps
        return Chunk((toward * left + 0.5 * noise).clamp(-1, 1), noise)


class SeeingBase(PointBase):
    """Acts like `PointBase` by what the camera sees."""

    spec = replace(PointBase.spec, cameras=("above",), image_size=(1, 1))

    def sample(self, obs: Mapping[str, Tensor], **options: Any) -> Chunk:
        seen = obs["images.above"][..., 0, 0, :2] / 127.5 - 1
        return super().sample({"state": seen}, **options)


FEATURE_COPIES = 2


def look(position: Tensor) -> Tensor:
    """What the camera shows of positions [..., 2], as numbers like positions."""
    return (127.5 * (position.double() + 1)).clamp(0, 255).floor().float() / 127.5 - 1


class FeatureBase(SeeingBase):
    """Acts like `SeeingBase`; its features are the position that it sees."""

    feature_size = 2  # type: ignore[assignment]

    def features(self, obs: Mapping[str, Tensor]) -> Tensor:
        return obs["images.above"][:, -1, 0, 0, :2] / 127.5 - 1

    def sample(self, obs: Mapping[str, Tensor], **options: Any) -> Chunk:
        return self.sample_from_features(self.features(obs), **options)

    def sample_from_features(self, features: Tensor, **options: Any) -> Chunk:
        return PointBase.sample(self, {"state": features[:, None]}, **options)


class Oracle:
    """The task's own dynamics as a world model."""

    members = 2
    resumable = True
    scale = torch.full((2,), 0.1)

    def fit(self, episodes: Sequence[Episode], newest: int, updates: int) -> dict[str, float]:
        return {}

    def step(
        self, start: ChunkStart, chunk: Tensor, member: Tensor, length: Tensor | None = None
    ) -> Prediction:
        states = start.frames[:, -1:] + (STEP * chunk.clamp(-1, 1)).cumsum(1)
        success = (states.norm(dim=-1) < RADIUS).float()
        return Prediction(states, success, success, torch.full((len(chunk), 2), 1e-6))

    def checkpoint(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass


class LatentOracle(Oracle):
    """The same for vectors of the position and of what the camera shows of it."""

    scale = torch.full((4,), 0.1)

    def step(
        self, start: ChunkStart, chunk: Tensor, member: Tensor, length: Tensor | None = None
    ) -> Prediction:
        made = super().step(ChunkStart(start.frames[..., :2], start.past), chunk, member, length)
        states = torch.cat([made.states, look(made.states)], -1)
        return replace(made, states=states, disagreement=torch.full((len(chunk), 4), 1e-6))


class Silent:
    """Takes no note of progress."""

    def update(self, step: int, **figures: float) -> None:
        pass


class PointRun:
    """A training run on the point task, up to its loop."""

    def __init__(
        self,
        directory: Path,
        *,
        seed: int = 0,
        imagination: ImaginationConfig | None = None,
        model: Callable[[ImaginationConfig], WorldModel] | None = None,
        method: OffPolicyMethod | None = None,
        camera: bool = False,
        features: bool = False,
        **options: Any,
    ) -> None:
        """Build the run.

        Args:
            directory: of the run.
            seed: of all but the environments' episodes.
            imagination: options, None for a run without it.
            model: makes another world model than that of `imagination`.
            method: another one than `residual_chunk`.
            camera: whether the base acts by what a camera sees.
            features: whether the policy sees the features of such a base.
            options: options of `residual_chunk`.
        """
        given = {
            "num_envs": 4, "steps": 4000, "warmup_steps": 400, "critic_warmup": 200, "batch_size": 128,
            "demo_ratio": 0.0, "hidden": [64, 64], "candidates": 4, "num_critics": 3, "n_step": 4,
            "gamma": 0.95, "utd": 0.5, "execute_fraction": 1.0,
        }  # fmt: skip
        self.method = method or ResidualChunkMethod(ResidualChunkConfig(**{**given, **options}))
        config = self.method.config
        self.envs = PointEnvs(config.num_envs, camera=camera or features)
        base = FeatureBase() if features else SeeingBase() if camera else PointBase()
        seen = EncoderSpec(2, features=2, feature_copies=FEATURE_COPIES) if features else EncoderSpec(2)
        context = AgentContext(base, seen, _ACTIONS, seed, torch.device("cpu"))
        torch.manual_seed(seed)
        self.agent: Agent = self.method.build_agent(context)
        self.learner = self.method.build_learner(self.agent, context)
        fields = replay_fields(self.method.replay_content, context, (1, 1))
        self.replay = ReplayBuffer(replay_rows(config), config.num_envs, 2, fields)
        self.sampler = MixedSampler(config, self.replay, None, self.method.window(context.base), seed)
        self.seed = seed
        self.imagination = None
        if imagination:
            assert isinstance(self.learner, ChunkLearner)
            chunk = max(self.method.window(context.base).chunk, 1)

            def build_model() -> WorldModel:
                if model:
                    return model(imagination)
                if isinstance(imagination, LatentModelConfig):
                    latent = LatentShape(4, 2, chunk, (), 2, "the base")
                    return LatentModel(imagination, latent, seed)
                return StateModel(imagination, Shape(2, 2, chunk), seed)

            content = self.method.replay_content
            layout = Layout(2, 1, FEATURE_COPIES) if features else Layout(2)
            samples = BaseSampler(base, max(content.base_samples, 1), chunk, layout)
            reward, fields = TaskReward(config.gamma), content.policy_fields
            self.imagination = Imagination(
                imagination, build_model, self.learner, samples, reward, fields, seed
            )
        directory.mkdir(parents=True, exist_ok=True)
        self.logger = RunLogger(directory, clock=lambda: 0.0)
        self.run = Run(directory, self.logger, Silent(), lambda: self.stopped, lambda _: None)
        self.stopped = False
        self.outcomes: list[tuple[int, bool]] = []
        """Environment step and success of each episode."""

    def train(self, steps: int | None = None, checkpoint_every: int = 0) -> "PointRun":
        config = self.method.config
        intervals = Intervals(steps or config.steps, 0, checkpoint_every)
        components = OffPolicyComponents(
            self.envs, self.agent, self.replay, self.sampler, self.learner, self.imagination
        )
        train_off_policy(config, components, intervals, self.run, self.seed)
        self.logger.close()
        rows = [line.split(",") for line in self.logger.path.read_text().splitlines()[1:]]
        self.outcomes = [(int(row[0]), float(row[3]) > 0) for row in rows if row[2] == "train/success"]
        return self

    def steps_to(self, success: float, over: int = 20) -> int:
        """First environment step at which that part of the last `over` episodes succeeded; all if never."""
        for i in range(over, len(self.outcomes) + 1):
            if np.mean([ok for _, ok in self.outcomes[i - over : i]]) >= success:
                return self.outcomes[i - 1][0]
        return self.method.config.steps

    def evaluate(self, episodes: int = 400) -> float:
        """Success of the trained policy, without exploration, from all directions."""
        angle = np.linspace(0, 2 * np.pi, episodes, endpoint=False)
        states = np.stack([0.5 * np.cos(angle), 0.5 * np.sin(angle), 0 * angle], 1)
        policy = acting_policy(self.agent.networks, self.envs.num_envs)
        outcomes = evaluate(PointEnvs(self.envs.num_envs), policy, states, self.seed)
        return float(np.mean([outcome.success for outcome in outcomes]))


def small_method(name: str, steps: int = 900) -> OffPolicyMethod:
    """A method with small networks."""
    kind = METHODS[name]
    assert issubclass(kind, OffPolicyMethod)
    config = kind.config_type(
        num_envs=4, steps=steps, warmup_steps=300, critic_warmup=50, batch_size=32, demo_ratio=0.0,
        hidden=[32, 32], num_critics=2, n_step=4,
    )  # fmt: skip
    return kind(config)
