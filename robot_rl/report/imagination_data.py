"""What the page about a run's imagination shows: tests of its world model, and rollouts on new episodes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from robot_rl.errors import UserError
from robot_rl.imagination.branches import Limits
from robot_rl.imagination.config import LatentModelConfig, StateModelConfig
from robot_rl.imagination.episodes import Episode, Steps, unpack_episodes
from robot_rl.imagination.gate import EpisodeTest
from robot_rl.imagination.imagination import read_limits, read_pool
from robot_rl.imagination.latent_model import LatentModel, LatentShape
from robot_rl.imagination.state_model import Shape, StateModel
from robot_rl.imagination.world_model import ChunkStart, WorldModel, chunk_start
from robot_rl.runs import check_is_run, list_checkpoints
from robot_rl.training.checkpoint import load_checkpoint

_MOST_CHUNKS = 8
"""Chunks of the longest rollout."""
_LEAST_ROLLOUTS = 4
"""Rollouts of a length that is shown."""
_RIDGE = 1e-6
Decision = dict[str, float | bool]


@dataclass(frozen=True)
class Horizon:
    """Errors of uncorrected rollouts: root mean square over dimensions, in units of the model's scale."""

    steps: list[int]
    model: list[float]
    persistence: list[float]
    """Of predicting that nothing moves."""
    linear: list[float]
    """Of a linear model, from two frames and the actions."""
    windows: list[int]
    """Number of rollouts of each length."""


@dataclass(frozen=True)
class ImaginationData:
    """The content of the page."""

    path: Path
    step: int
    """Environment step of the checkpoint."""
    config: dict[str, Any]
    """The run's configuration."""
    decisions: list[Decision]
    """Lines of `imagination.jsonl`."""
    pool: list[EpisodeTest]
    """Tests of episodes that the model had not learned from."""
    limits: Limits
    episodes: list[Episode]
    learned: int
    """Number of episodes that the model has learned from; those after them are new to it."""
    model: WorldModel | None
    """The model of the checkpoint; None if it is in another process."""
    chunk: int
    history: int
    """Chunks before each that the model looks at."""

    @property
    def is_new(self) -> bool:
        """Whether `shown_episodes` are new to the model."""
        return self.learned < len(self.episodes)

    @property
    def shown_episodes(self) -> list[Episode]:
        """Those that the model has not learned from or, if there are none, the newest."""
        return self.episodes[self.learned :] or self.episodes[-10:]


def read_imagination(run: Path) -> ImaginationData:
    """Read the imagination of a run from its newest checkpoint.

    Raises:
        UserError: if the run has none, or a file is missing or damaged.
    """
    check_is_run(run)
    try:
        config = yaml.safe_load((run / "config.yaml").read_text())
        options = config["imagination"]
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise UserError(f"{run / 'config.yaml'} is damaged ({error!r})") from None
    if not options:
        raise UserError(f"{run} is a run without imagination: train one with imagination=state")
    checkpoints = list_checkpoints(run / "checkpoints")
    if not checkpoints:
        raise UserError(f"{run} has no checkpoint yet: wait for the first, or stop the run, which saves one")
    checkpoint = load_checkpoint(checkpoints[-1])
    try:
        state = checkpoint["imagination"]
        limits = read_limits(state)
        if limits is None:
            raise UserError(
                f"the world model of {run} was not tested before its newest checkpoint: let the run go on"
            )
        pool, episodes = read_pool(state), unpack_episodes(state)
        chunk, model = _model(options, state["model"])
        history = model.config.context_chunks if model else 0
        return ImaginationData(
            path=run,
            step=int(checkpoint["step"]),
            config=config,
            decisions=_decisions(run / "imagination.jsonl"),
            pool=pool,
            limits=limits,
            episodes=episodes,
            learned=int(state["learned"]),
            model=model,
            chunk=chunk,
            history=history,
        )
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"the imagination in checkpoint {checkpoints[-1]} cannot be read ({error!r}): another version of "
            "this program has written it"
        ) from None


def measure_horizon(data: ImaginationData) -> Horizon | None:
    """Errors over the length of a rollout; None for a model in another process, or without a whole chunk."""
    model, h = data.model, data.chunk
    if model is None:
        return None
    steps = Steps(data.shown_episodes, data.history)
    start = steps.chunk_starts(h)
    window = steps.windows(start, h, _MOST_CHUNKS)
    whole = window.seen.view(len(start), _MOST_CHUNKS, h).all(2)
    alive = torch.nonzero(whole[:, 0]).squeeze(1)
    if not len(alive):
        return None
    linear = _Linear(data.episodes[: data.learned], h, model.scale)
    member = torch.arange(len(start)) % model.members
    begin = chunk_start(window)
    now = {"model": begin[alive], "linear": begin[alive]}
    found: dict[str, list[float]] = {"model": [], "persistence": [], "linear": []}
    windows = []
    for depth in range(_MOST_CHUNKS):
        if depth and len(alive) < _LEAST_ROLLOUTS:
            break
        part = slice(depth * h, (depth + 1) * h)
        chunk, real = window.actions[alive, part], window.states[alive, part][:, -1]
        states = {
            "model": model.step(now["model"], chunk, member[alive]).states,
            "linear": linear.step(now["linear"], chunk),
        }
        ends = {name: each[:, -1] for name, each in states.items()}
        ends["persistence"] = window.frames[alive, -1]
        for name, end in ends.items():
            found[name].append(float(((end - real) / model.scale).square().mean().sqrt()))
        windows.append(len(alive))
        if depth + 1 < _MOST_CHUNKS:
            on = whole[alive, depth + 1]
            now = {name: now[name].after(chunk, states[name])[on] for name in now}
            alive = alive[on]
    lengths = [h * (i + 1) for i in range(len(windows))]
    return Horizon(lengths, found["model"], found["persistence"], found["linear"], windows)


class _Linear:
    """Least squares from where a chunk begins and its actions to the states after each step."""

    def __init__(self, episodes: Sequence[Episode], chunk: int, scale: Tensor) -> None:
        steps = Steps(episodes)
        window = steps.windows(steps.starts, chunk)
        whole = window.seen.all(1)
        self._scale = scale
        begin = chunk_start(window)[whole]
        inputs = self._inputs(begin, window.actions[whole])
        change = ((window.states[whole] - begin.frames[:, -1:]) / scale).flatten(1).double()
        gram = inputs.T @ inputs
        ridge = _RIDGE * max(len(inputs), 1) * torch.eye(len(gram), dtype=torch.double)
        self._weight = torch.linalg.solve(gram + ridge, inputs.T @ change)

    def step(self, start: ChunkStart, chunk: Tensor) -> Tensor:
        change = (self._inputs(start, chunk) @ self._weight).float().unflatten(1, (chunk.shape[1], -1))
        return start.frames[:, -1:] + self._scale * change

    def _inputs(self, start: ChunkStart, chunk: Tensor) -> Tensor:
        frames = start.frames / self._scale
        parts = (frames[:, 1], frames[:, 1] - frames[:, 0], start.past.flatten(1), chunk.flatten(1))
        inputs = torch.cat(parts, 1).double()
        return torch.cat([inputs, inputs.new_ones(len(inputs), 1)], 1)


def _model(options: dict[str, Any], state: dict[str, Any]) -> tuple[int, StateModel | None]:
    """Steps of a chunk, and the model of a checkpoint."""
    if options["name"] == "remote":
        return int(state["chunk"]), None
    shape = state["shape"]
    state_size, action_size, chunk = (int(shape[name]) for name in ("state", "action", "chunk"))
    sizes = state_size, action_size, chunk, tuple(int(first) for first in shape["quaternions"])
    model: StateModel
    if options["name"] == "latent":
        latent = LatentShape(*sizes, int(shape["features"]), str(shape["features_of"]))
        model = LatentModel(LatentModelConfig(**options), latent, 0)
    else:
        model = StateModel(StateModelConfig(**options), Shape(*sizes), 0)
    model.restore(state)
    return chunk, model


def _decisions(path: Path) -> list[Decision]:
    try:
        found = [json.loads(line) for line in path.read_text().splitlines()]
    except FileNotFoundError:
        raise UserError(f"{path} is missing: `robot-rl train imagination=…` writes it") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error})") from None
    for line in found:
        numbers = isinstance(line, dict) and all(isinstance(value, int | float) for value in line.values())
        if not numbers or not {"step", "share"} <= line.keys():
            raise UserError(f"{path} is damaged: a line is no decision of the gate ({str(line)[:80]})")
    return found
