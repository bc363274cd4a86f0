"""Collects episodes of a saved policy in simulation, from which another policy, or its own base, can learn.

A tuned policy and the base that it was trained around can share an episode in two ways:

- The base acts first, for a random number of steps, and the tuned policy then, so that its actions are seen
  in states that the base visits (PLD, arXiv 2511.00091).
- The base acts in the whole episode, and the tuned policy's actions in the same states are stored as what is
  to be imitated (DAgger, arXiv 1011.0686).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from robot_rl.data.compatibility import OF_A_SCENE, check_same_environment
from robot_rl.data.dataset import TARGET
from robot_rl.data.episode_notes import SOURCE
from robot_rl.data.simulated_episodes import SimulatedEpisode, record_episode
from robot_rl.envs.action import repeated_in_hold
from robot_rl.envs.observation import Observation
from robot_rl.envs.task import TaskConfig
from robot_rl.factory import make_env
from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.async_runner import execute_asynchronously
from robot_rl.policies.asynchronous import AsyncOptions
from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.finetuned.finetuned_policy import FinetunedPolicy
from robot_rl.policies.store import fingerprint
from robot_rl.rollout import episode_seed
from robot_rl.saved_policies.loading import acting_policy, base_of, check_instructions, trained_execution

ACTORS: Final = ("policy", "base")
"""Who acts, by number in the array `source`."""


@dataclass(frozen=True)
class PolicyOptions:
    """What a policy's episodes depend on, besides their number.

    Raises:
        ValueError: if the base is to act, and the policy has none or is executed asynchronously.
    """

    task: TaskConfig
    path: str
    """Where the policy was loaded from, for messages."""
    networks: BasePolicy | FinetunedPolicy
    """The policy, on the CPU."""
    meta: Mapping[str, Any]
    """Metadata that it was saved with."""
    base_first: float
    """The base acts for a random part of the time limit first, of at most this size, in [0, 1)."""
    dagger: bool
    """The base acts in whole episodes, and the policy's actions are stored beside its own."""
    seed: int

    def __post_init__(self) -> None:
        asked = "dagger=true" if self.dagger else f"base_first={self.base_first:g}" if self.base_first else ""
        if asked and not isinstance(self.networks, FinetunedPolicy):
            raise ValueError(f"{asked}: nothing is trained around the base policy {self.path}: leave it out")
        if asked and self.execution:
            raise ValueError(
                f"{asked}: the policy {self.path} was trained with {self.execution}, in which it cannot "
                "share an episode with its base: leave it out"
            )

    @property
    def execution(self) -> AsyncOptions:
        """How the policy executes the base's chunks: as in its training."""
        return trained_execution(self.meta)

    def collector(self) -> "PolicyCollector":
        # A few observations through a small network: more threads do not help.
        torch.set_num_threads(1)
        return PolicyCollector(self)

    def collection(self) -> dict[str, Any]:
        return {
            "policy": fingerprint(self.networks),
            "method": self.meta.get("method"),
            "base_first": self.base_first,
            "dagger": self.dagger,
            "seed": self.seed,
            **(asdict(self.execution) if self.execution else {}),
            "sources": list(ACTORS),
        }


class PolicyCollector:
    """An environment in which a policy acts, or its base; an episode depends on its number alone."""

    def __init__(self, options: PolicyOptions) -> None:
        """Create the environment.

        Raises:
            ValueError: if the policy was trained in another environment, does not know a word of an
                instruction, or cannot be executed as in its training.
        """
        self._options, networks = options, options.networks
        self.env = make_env(options.task, observe_all=True)
        # Instructions tell scenes apart, in which one policy can act.
        accept = OF_A_SCENE if base_of(networks).spec.instruction else ()
        trained_in, what = options.meta["environment"], f"policy {options.path}"
        check_same_environment(trained_in, self.env.describe(), what, accept)
        check_instructions(networks, self.env.task.name, self.env.task.instructions)
        self._policy = acting_policy(networks, 1)
        execute_asynchronously(self._policy, options.execution, repeated_in_hold(self.env.action_spec))
        self._base: ActingPolicy | None = None
        if options.dagger or options.base_first:
            self._base = ActingPolicy(self._policy.base, 1)

    def collect(self, number: int) -> SimulatedEpisode:
        seed = episode_seed(self._options.seed, "collect", number)
        obs, _ = self.env.reset(seed=seed, options={"playback_start": True})
        self._policy.reset([0], [seed])
        if self._base is None:
            turns = _Turns(self._policy)
        else:
            self._base.reset([0], [seed])
            turns = _SharedTurns(self._policy, self._base, self._base_steps(seed), self._options.dagger)
        arrays, success = record_episode(self.env, turns.act, obs, turns.arrays)
        return SimulatedEpisode(seed, arrays, success)

    def close(self) -> None:
        self.env.close()

    def _base_steps(self, seed: int) -> int:
        """For how many steps of an episode the base acts: all, or a number drawn uniformly."""
        limit = self.env.task.horizon
        if self._options.dagger:
            return limit
        return int(np.random.default_rng([seed, 1]).integers(int(self._options.base_first * limit) + 1))


class _Turns:
    """A policy that acts in a whole episode."""

    def __init__(self, policy: ActingPolicy) -> None:
        self._policy = policy

    def act(self, obs: Observation) -> NDArray[np.float32]:
        return self._policy.act_single(obs)

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """What is stored of the step that was chosen last, besides the action."""
        return {SOURCE: np.array(ACTORS.index("policy"), np.uint8)}


class _SharedTurns(_Turns):
    """The base for the first steps of an episode, then the policy, with a new chunk."""

    def __init__(self, policy: ActingPolicy, base: ActingPolicy, base_steps: int, labels: bool) -> None:
        super().__init__(policy)
        self._base, self._base_steps, self._labels = base, base_steps, labels
        self._steps = 0
        """Steps that were chosen."""
        self._proposed = np.zeros(0, np.float32)
        """The policy's action in the last step, whoever acted."""

    def act(self, obs: Observation) -> NDArray[np.float32]:
        if self._steps == self._base_steps:
            self._policy.replan(0)
        # In the base's steps too: it observes them, and its actions may be stored.
        self._proposed = self._policy.act_single(obs)
        self._steps += 1
        return self._base.act_single(obs) if self._steps <= self._base_steps else self._proposed

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        actor = "base" if self._steps <= self._base_steps else "policy"
        labels = {TARGET: self._proposed} if self._labels else {}
        return {SOURCE: np.array(ACTORS.index(actor), np.uint8), **labels}
