"""Answers the requests of a policy server: checks observations, and runs the policy on several at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robot_rl.envs.instruction import (
    INSTRUCTION,
    INSTRUCTION_BYTES,
    decode_instruction,
    encode_instruction,
)
from robot_rl.envs.observation import ObservationSpec
from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.bases.imitation import ImitationPolicy
from robot_rl.policies.finetuned.finetuned_policy import FinetunedPolicy
from robot_rl.policies.store import fingerprint
from robot_rl.policy_client.codec import BATCH, BULK, FEATURES, NOISE, PROMPT, SAMPLES, SEED, MessageError
from robot_rl.saved_policies.loading import acting_policy

MAX_SAMPLES = 64
"""Largest number of samples in one request."""
MAX_ROWS = 256
"""Largest number of observations in one request."""
_RESERVED = (NOISE, SAMPLES, SEED, BULK, BATCH, FEATURES)


@dataclass(frozen=True)
class Query:
    """A request that was checked."""

    obs: Mapping[str, NDArray[Any]]
    """Observations with their histories, [B, To, …] each."""
    samples: int
    """Samples N of the base for each."""
    noise: NDArray[np.float32] | None
    """Their noise [B, N, Hn, Dn]; drawn if None."""
    seed: int | None
    """Seed of the drawn noise."""
    bulk: bool
    """Whether the reply has all samples and their noise."""
    batched: bool = False
    """Whether the arrays of the reply have the axis B; without it, B is 1."""
    features: bool = False
    """Whether the reply has the base's features of the observations."""


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
        if self.policy.corrects_steps:
            raise ValueError(
                "this policy corrects each action from the newest observation, and a server sends whole "
                "chunks: serve its base (policy=…/base), or a policy of residual_chunk, expo or dsrl"
            )
        self.tuned = isinstance(networks, FinetunedPolicy)
        self.observed = ObservationSpec.from_dict(environment["observation_spec"])
        self.base = self.policy.base
        self._cameras = self.observed.cameras if self.tuned else self.base.spec.cameras
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
                "images": {f"images.{camera}": [*observed.image_size, 3] for camera in self._cameras},
                "prompt": spec.instruction,
            },
            "action": {
                "shape": [self.steps, spec.action_size],
                "execute": self.policy.execute or spec.execute,
                "spec": environment.get("action_spec"),
            },
            "noise": None if self.tuned or spec.noise_shape is None else list(spec.noise_shape),
            "max_samples": 1 if self.tuned or spec.noise_shape is None else MAX_SAMPLES,
            "max_batch": MAX_ROWS,
            "reserved": list(_RESERVED),
            "environment": dict(environment),
            **({} if self.tuned else self._description),
        }

    @property
    def _description(self) -> dict[str, Any]:
        """What `base=remote` needs to know of a base."""
        description: dict[str, Any] = {
            "spec": self.base.spec.as_dict(),
            "feature_size": self.base.feature_size,
        }
        if isinstance(self.base, ImitationPolicy):
            ranges = self.base.state_normalizer
            description["state_range"] = {
                "center": ranges.center.tolist(),
                "half_range": ranges.half_range.tolist(),
            }
        return description

    @property
    def steps(self) -> int:
        """Steps of a reply: all that a base predicts, or those that a tuned policy chose among."""
        return self.base.spec.execute if self.tuned else self.base.spec.horizon

    def check(self, request: Mapping[str, Any]) -> Query:
        names = ["state", *(f"images.{camera}" for camera in self._cameras)]
        known = (*names, *([INSTRUCTION] if self.base.spec.instruction else []), PROMPT, *_RESERVED)
        if unknown := [name for name in request if name not in known]:
            raise MessageError(f"unknown key {unknown[0]!r:.60}; this policy observes {', '.join(names)}")
        rows = _integer(request, BATCH, 1, 1, MAX_ROWS) if BATCH in request else None
        obs: dict[str, NDArray[Any]] = {"state": self._state(request, rows)}
        for name in names[1:]:
            obs[name] = self._image(request, name, rows)
        if self.base.spec.instruction:
            obs[INSTRUCTION] = self._instruction(request, rows)
        samples = _integer(request, SAMPLES, 1, 1, MAX_SAMPLES)
        seed = _integer(request, SEED, -1, 0, 2**63 - 1)
        noise = self._noise(request, samples, rows)
        if self.tuned and samples > 1:
            raise MessageError(f"{SAMPLES} is for base policies: a tuned one chooses among its own samples")
        if samples > 1 and self.base.spec.noise_shape is None:
            raise MessageError(f"{SAMPLES}: this base has no noise input, so all its samples are equal")
        bulk, features = self._flag(request, BULK), self._flag(request, FEATURES)
        if features and self.base.feature_size is None:
            raise MessageError(f"{FEATURES}: this base gives no features")
        if noise is not None:
            samples = noise.shape[1]
        return Query(obs, samples, noise, seed if seed >= 0 else None, bulk, rows is not None, features)

    def _flag(self, request: Mapping[str, Any], name: str) -> bool:
        """A request for more than actions, which only a base answers."""
        asked = request.get(name, False)
        if not isinstance(asked, bool):
            raise MessageError(f"{name} is true or false")
        if self.tuned and asked:
            raise MessageError(f"{name} is for base policies")
        return asked

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
            name: torch.from_numpy(np.concatenate([query.obs[name] for query in queries])).to(device)
            for name in queries[0].obs
        }
        counts = [len(query.obs["state"]) for query in queries]
        if self.tuned:
            generators = [
                generator
                for query, count in zip(queries, counts, strict=True)
                for generator in [self._generator_of(query)] * count
            ]
            chosen = self.policy.plan(obs, generators).cpu().split(counts)
            return [_reply(query, actions=own) for query, own in zip(queries, chosen, strict=True)]
        noise = None
        if self.base.spec.noise_shape is not None:
            noise = torch.cat([self._drawn(query, n) for query, n in zip(queries, counts, strict=True)])
        features, samples = None, queries[0].samples if noise is not None else 1
        if any(query.features for query in queries):
            features = self.base.features(obs)
            chunk = self.base.sample_from_features(features, noise=noise, num_samples=samples)
        else:
            chunk = self.base.sample(obs, noise=noise, num_samples=samples)
        parts = [
            [None] * len(queries) if value is None else value.cpu().split(counts)
            for value in (chunk.actions, noise, features)
        ]
        replies = []
        for query, actions, used, seen in zip(queries, *parts, strict=True):
            assert actions is not None
            more = {"samples": actions, "noise": used} if query.bulk else {}
            if query.features:
                more["features"] = seen
            replies.append(_reply(query, actions=actions[:, 0], **more))
        return replies

    def _drawn(self, query: Query, rows: int) -> Tensor:
        """Noise [B, N, Hn, Dn] of a request."""
        if query.noise is not None:
            return torch.from_numpy(query.noise).to(self.base.device)
        return self.base.draw_noise(rows, query.samples, self._generator_of(query))

    def _generator_of(self, query: Query) -> torch.Generator:
        if query.seed is None:
            return self._generator
        return torch.Generator().manual_seed(query.seed)

    # ---- what a request holds ------------------------------------------------------------------------

    def _state(self, request: Mapping[str, Any], rows: int | None) -> NDArray[np.float32]:
        size = self.observed.state_size
        state = self._history(request, "state", (size,), rows)
        if state.dtype.kind != "f":
            raise MessageError(f"state has type {state.dtype}; send floats")
        if not np.isfinite(state).all():
            raise MessageError("state has a value that is not finite")
        return state.astype(np.float32)

    def _image(self, request: Mapping[str, Any], name: str, rows: int | None) -> NDArray[np.uint8]:
        image = self._history(request, name, (*self.observed.image_size, 3), rows)
        if image.dtype != np.uint8:
            raise MessageError(f"{name} has type {image.dtype}; send uint8")
        return image.copy()

    def _instruction(self, request: Mapping[str, Any], rows: int | None) -> NDArray[np.uint8]:
        """The instructions [B, To, L]: a prompt for all rows, or an encoded array."""
        try:
            if INSTRUCTION in request:
                encoded = self._history(request, INSTRUCTION, (INSTRUCTION_BYTES,), rows)
                if encoded.dtype != np.uint8:
                    raise MessageError(f"{INSTRUCTION} has type {encoded.dtype}; send uint8")
                texts = {
                    decode_instruction(row)
                    for row in np.unique(encoded.reshape(-1, INSTRUCTION_BYTES), axis=0)
                }
            else:
                prompt = request.get(PROMPT)
                if not isinstance(prompt, str):
                    raise MessageError(f"{PROMPT} is missing: this policy reads an instruction, as a text")
                shape = (rows or 1, self.base.spec.obs_steps, 1)
                encoded, texts = np.tile(encode_instruction(prompt), shape), {prompt}
            for text in texts:
                self.base.check_instruction(text)
        except ValueError as error:
            raise MessageError(str(error)) from error
        return encoded.copy()

    def _history(
        self, request: Mapping[str, Any], name: str, shape: tuple[int, ...], rows: int | None
    ) -> NDArray[Any]:
        """An observed array [B, To, …]."""
        steps, value = self.base.spec.obs_steps, request.get(name)
        if name not in request:
            raise MessageError(f"{name} is missing")
        if not isinstance(value, np.ndarray):
            raise MessageError(f"{name} is no array")
        whole = (steps, *shape) if rows is None else (rows, steps, *shape)
        if rows is None and steps == 1 and value.shape == shape:
            value = value[None]
        if value.shape != whole:
            first = f"the last {steps} frames, oldest first, of " if steps > 1 else ""
            wanted = f"{first}{list(shape)}" if rows is None else f"{list(whole)}"
            raise MessageError(f"{name} has shape {list(value.shape)}; send {wanted}")
        return value[None] if rows is None else value

    def _noise(
        self, request: Mapping[str, Any], samples: int, rows: int | None
    ) -> NDArray[np.float32] | None:
        """Noise [B, N, Hn, Dn] of a request."""
        if NOISE not in request:
            return None
        shape, value = self.base.spec.noise_shape, request[NOISE]
        if shape is None or self.tuned:
            why = "a tuned policy draws its own" if self.tuned else "this base has no noise input"
            raise MessageError(f"{NOISE} cannot be given: {why}")
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or not np.isfinite(value).all():
            raise MessageError(f"{NOISE} is an array of finite floats")
        found, wanted = list(value.shape), f"[{rows}, N, {shape[0]}, {shape[1]}], N at most {MAX_SAMPLES}"
        if rows is None:
            wanted = (
                f"{list(shape)}, {[shape[1]]} to repeat it over the chunk, or N of {list(shape)}, "
                f"at most {MAX_SAMPLES}"
            )
            if value.shape == (shape[1],):
                value = np.broadcast_to(value, shape)
            value = value[None, None] if value.shape == shape else value[None]
        fits = value.ndim == 4 and value.shape[2:] == shape and 1 <= value.shape[1] <= MAX_SAMPLES
        if not fits or len(value) != (rows or 1):
            raise MessageError(f"{NOISE} has shape {found}; send {wanted}")
        if SAMPLES in request and samples != value.shape[1]:
            raise MessageError(f"{NOISE} is for {value.shape[1]} samples, {SAMPLES} is {samples}")
        return value.astype(np.float32)


def _reply(query: Query, **arrays: Tensor | None) -> dict[str, Any]:
    """The arrays [B, …] of a reply; those of a request without a batch lose their first axis."""
    values = {name: value.numpy() for name, value in arrays.items() if value is not None}
    return values if query.batched else {name: value[0] for name, value in values.items()}


def _integer(request: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    value = request.get(name, default)
    if name in request and (type(value) is not int or not least <= value <= most):
        raise MessageError(f"{name} is {value!r:.40}; send an integer from {least} to {most}")
    return int(value)
