"""The stepping loop of everything that acts, and the seeds of episodes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from robot_rl.envs.observation import Observation

Act = Callable[[Observation], NDArray[np.float32]]
"""Chooses the next action [A] from an observation, or the actions [B, A] of B environments."""
ValueT = TypeVar("ValueT", bound=float | NDArray[Any], covariant=True)
"""A float or bool of one environment, or an array [B] of B environments."""


class Steppable(Protocol[ValueT]):
    """An environment of Gymnasium: one, or B that are stepped together."""

    def step(
        self, action: NDArray[np.float32], /
    ) -> tuple[Observation, ValueT, ValueT, ValueT, dict[str, Any]]: ...


@dataclass(frozen=True)
class Transition(Generic[ValueT]):
    """One control step; of B environments, every field has B rows."""

    obs: Observation
    """Observation before the step."""
    action: NDArray[np.float32]
    next_obs: Observation
    """Observation after the step: the last one of an episode that ended."""
    reward: ValueT
    terminated: ValueT
    truncated: ValueT
    info: dict[str, Any]

    @property
    def done(self) -> NDArray[np.bool_]:
        """Whether the episode ended."""
        return np.logical_or(self.terminated, self.truncated)


class Rollout(Generic[ValueT]):
    """Steps one environment, or B together, with the actions that `act` chooses.

    Iterating ends with the episode; of B environments, when all have ended and `begin` was not called since.
    Environments are reset by the caller, who knows the seeds and initial states.
    """

    def __init__(self, env: Steppable[ValueT], act: Act, obs: Observation) -> None:
        """`obs` is the observation of the environment, which was reset."""
        self.env, self.act, self.obs = env, act, obs
        self.action: NDArray[np.float32] | None = None
        """The next action, if it is chosen already."""
        self._over = False

    def begin(self, obs: Observation) -> None:
        """Continue from this observation, after environments were reset."""
        self.obs, self._over = obs, False

    def decide(self) -> NDArray[np.float32]:
        """Choose the next action before its step, for example to save it in a checkpoint."""
        if self.action is None:
            self.action = self.act(self.obs)
        return self.action

    def step(self) -> Transition[ValueT]:
        """Execute the next action."""
        obs, action = self.obs, self.decide()
        self.obs, reward, terminated, truncated, info = self.env.step(action)
        self.action = None
        transition = Transition(obs, action, self.obs, reward, terminated, truncated, info)
        self._over = bool(np.all(transition.done))
        return transition

    def __iter__(self) -> Iterator[Transition[ValueT]]:
        while not self._over:
            yield self.step()


def episode_seed(seed: int, stream: str, episode: int) -> int:
    """A 32-bit seed for one episode of one purpose (`train`, `eval`, `collect`, …) of a run."""
    return int(np.random.SeedSequence([seed, *stream.encode(), episode]).generate_state(1)[0])
