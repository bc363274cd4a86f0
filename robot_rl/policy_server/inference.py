"""Answers the requests of a policy server: checks observations, and runs the policy on several at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robot_rl.envs.observation import ObservationSpec
from robot_rl.loading import acting_policy
from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.finetuned.finetuned_policy import FinetunedPolicy
from robot_rl.policies.store import fingerprint
from robot_rl.policy_server.codec import MessageError

MAX_SAMPLES = 64
"""Largest number of samples in one request."""
NOISE, SAMPLES, SEED, BULK = "__noise__", "__num_samples__", "__seed__", "__return_samples__"
"""Reserved keys of a request."""
_RESERVED = (NOISE, SAMPLES, SEED, BULK)
PROMPT = "prompt"


@dataclass(frozen=True)
class Query:
    """A request that was checked."""

    obs: Mapping[str, NDArray[Any]]
    """Observation with its history, [To, …] each."""
    samples: int
    """Samples N of the base."""
    noise: NDArray[np.float32] | None
    """Their noise [N, Hn, Dn]; drawn if None."""
    seed: int | None
    """Seed of the drawn noise."""
    bulk: bool
    """Whether the reply has all samples and their noise."""


class Inference(Protocol):
    """What a server serves."""

    @property
    def metadata(self) -> dict[str, Any]:
        """Sent to a client when it connects."""
        ...

    def check(self, request: Mapping[str, Any]) -> Query:
        """Check a request. Raises MessageError, with one line for the client."""
        ...

    def infer(self, queries: Sequence[Query]) -> list[dict[str, Any]]:
        """Replies to several requests, in one thread at a time."""
        ...


class PolicyInference:
    """Serves a base policy or a tuned one that chooses whole chunks."""

    def __init__(
        self, networks: BasePolicy | FinetunedPolicy, environment: Mapping[str, Any], seed: int
    ) -> None:
        """`seed` is that of noise for which a client gives none.

        Raises:
            ValueError: if the policy corrects every step.
        """
        self.policy = acting_policy(networks, 1)
        if type(self.policy)._correct_action is not ActingPolicy._correct_action:
            raise ValueError(
                "this policy corrects each action from the newest observation, and a server sends whole "
                "chunks: serve its base (policy=…/base), or a policy of residual_chunk, expo or dsrl"
            )
        self.tuned = isinstance(networks, FinetunedPolicy)
        self.observed = ObservationSpec.from_dict(environment["observation_spec"])
        self.base = self.policy.base
        self._environment, self._fingerprint = environment, fingerprint(networks)
        self._generator = torch.Generator().manual_seed(seed)

    @property
    def metadata(self) -> dict[str, Any]:
        spec, observed, environment = self.base.spec, self.observed, self._environment
        return {
            "server": "robot-rl",
            "kind": "tuned" if self.tuned else "base",
            "fingerprint": self._fingerprint,
            "task": environment["task"],
            "control_freq": environment["control_freq"],
            "observation": {
                "obs_steps": spec.obs_steps,
                "state": {"keys": list(observed.state_keys), "sizes": list(observed.state_dims)},
                "images": {f"images.{camera}": [*observed.image_size, 3] for camera in observed.cameras},
                "prompt": False,
            },
            "action": {
                "shape": [self.steps, spec.action_size],
                "execute": self.policy.execute or spec.execute,
                "spec": environment.get("action_spec"),
            },
            "noise": None if self.tuned or spec.noise_shape is None else list(spec.noise_shape),
            "max_samples": 1 if self.tuned or spec.noise_shape is None else MAX_SAMPLES,
            "reserved": list(_RESERVED),
        }

    @property
    def steps(self) -> int:
        """Steps of a reply: all that a base predicts, or those that a tuned policy chose among."""
        return self.base.spec.execute if self.tuned else self.base.spec.horizon

    def check(self, request: Mapping[str, Any]) -> Query:
        names = ["state", *(f"images.{camera}" for camera in self.observed.cameras)]
        if unknown := [name for name in request if name not in (*names, PROMPT, *_RESERVED)]:
            raise MessageError(f"unknown key {unknown[0]!r:.60}; this policy observes {', '.join(names)}")
        obs: dict[str, NDArray[Any]] = {"state": self._state(request)}
        for name in names[1:]:
            obs[name] = self._image(request, name)
        samples = _integer(request, SAMPLES, 1, 1, MAX_SAMPLES)
        seed = _integer(request, SEED, -1, 0, 2**63 - 1)
        noise = self._noise(request, samples)
        if self.tuned and samples > 1:
            raise MessageError(f"{SAMPLES} is for base policies: a tuned one chooses among its own samples")
        if samples > 1 and self.base.spec.noise_shape is None:
            raise MessageError(f"{SAMPLES}: this base has no noise input, so all its samples are equal")
        bulk = request.get(BULK, False)
        if not isinstance(bulk, bool):
            raise MessageError(f"{BULK} is true or false")
        if self.tuned and bulk:
            raise MessageError(f"{BULK} is for base policies")
        return Query(obs, samples if noise is None else len(noise), noise, seed if seed >= 0 else None, bulk)

    @torch.no_grad()
    def infer(self, queries: Sequence[Query]) -> list[dict[str, Any]]:
        replies: list[dict[str, Any]] = [{}] * len(queries)
        for count in {query.samples for query in queries}:
            rows = [i for i, query in enumerate(queries) if query.samples == count]
            for i, reply in zip(rows, self._batch([queries[i] for i in rows]), strict=True):
                replies[i] = reply
        return replies

    def _batch(self, queries: Sequence[Query]) -> list[dict[str, Any]]:
        """Replies to requests of equal numbers of samples."""
        device = self.base.device
        obs = {
            name: torch.from_numpy(np.stack([query.obs[name] for query in queries])).to(device)
            for name in queries[0].obs
        }
        if self.tuned:
            generators = [self._generator_of(query) for query in queries]
            chosen = self.policy.plan(obs, generators).cpu().numpy()
            return [{"actions": actions} for actions in chosen]
        noise = None
        if self.base.spec.noise_shape is not None:
            noise = torch.cat([self._drawn(query) for query in queries])
        chunk = self.base.sample(obs, noise=noise, num_samples=queries[0].samples if noise is not None else 1)
        replies = []
        for i, query in enumerate(queries):
            actions = chunk.actions[i].cpu().numpy()
            reply: dict[str, Any] = {"actions": actions[0]}
            if query.bulk:
                reply["samples"] = actions
                if noise is not None:
                    reply["noise"] = noise[i].cpu().numpy()
            replies.append(reply)
        return replies

    def _drawn(self, query: Query) -> Tensor:
        """Noise [1, N, Hn, Dn] of a request."""
        if query.noise is not None:
            return torch.from_numpy(query.noise).to(self.base.device)[None]
        return self.base.draw_noise(1, query.samples, self._generator_of(query))

    def _generator_of(self, query: Query) -> torch.Generator:
        if query.seed is None:
            return self._generator
        return torch.Generator().manual_seed(query.seed)

    # ---- what a request holds ------------------------------------------------------------------------

    def _state(self, request: Mapping[str, Any]) -> NDArray[np.float32]:
        size = self.observed.state_size
        state = self._history(request, "state", (size,))
        if state.dtype.kind != "f":
            raise MessageError(f"state has type {state.dtype}; send floats")
        if not np.isfinite(state).all():
            raise MessageError("state has a value that is not finite")
        return state.astype(np.float32)

    def _image(self, request: Mapping[str, Any], name: str) -> NDArray[np.uint8]:
        image = self._history(request, name, (*self.observed.image_size, 3))
        if image.dtype != np.uint8:
            raise MessageError(f"{name} has type {image.dtype}; send uint8")
        return image.copy()

    def _history(self, request: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """An observed array [To, …]."""
        steps, value = self.base.spec.obs_steps, request.get(name)
        if name not in request:
            raise MessageError(f"{name} is missing")
        if not isinstance(value, np.ndarray):
            raise MessageError(f"{name} is no array")
        if steps == 1 and value.shape == shape:
            value = value[None]
        if value.shape != (steps, *shape):
            first = f"the last {steps} frames, oldest first, of " if steps > 1 else ""
            raise MessageError(f"{name} has shape {list(value.shape)}; send {first}{list(shape)}")
        return value

    def _noise(self, request: Mapping[str, Any], samples: int) -> NDArray[np.float32] | None:
        """Noise [N, Hn, Dn] of a request."""
        if NOISE not in request:
            return None
        shape, value = self.base.spec.noise_shape, request[NOISE]
        if shape is None or self.tuned:
            why = "a tuned policy draws its own" if self.tuned else "this base has no noise input"
            raise MessageError(f"{NOISE} cannot be given: {why}")
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or not np.isfinite(value).all():
            raise MessageError(f"{NOISE} is an array of finite floats")
        if value.shape == (shape[1],):
            # Repeated over the chunk.
            value = np.broadcast_to(value, shape)
        if value.shape == shape:
            value = value[None]
        if value.shape[1:] != shape or not 1 <= len(value) <= MAX_SAMPLES:
            raise MessageError(
                f"{NOISE} has shape {list(value.shape)}; send {list(shape)}, {[shape[1]]} to repeat it over "
                f"the chunk, or N of {list(shape)}, at most {MAX_SAMPLES}"
            )
        if SAMPLES in request and samples != len(value):
            raise MessageError(f"{NOISE} is for {len(value)} samples, {SAMPLES} is {samples}")
        return value.astype(np.float32)


def _integer(request: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    value = request.get(name, default)
    if name in request and (type(value) is not int or not least <= value <= most):
        raise MessageError(f"{name} is {value!r:.40}; send an integer from {least} to {most}")
    return int(value)
