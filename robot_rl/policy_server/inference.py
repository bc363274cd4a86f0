"""Answers the requests of a policy server: checks observations, and runs the policy on several at once."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
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
from robot_rl.policies.bases.base_policy import BasePolicy, BaseSpec
from robot_rl.policies.bases.imitation import ImitationPolicy
from robot_rl.policies.chunk_runner import sample_base
from robot_rl.policies.finetuned.finetuned_policy import FinetunedPolicy
from robot_rl.policies.nets.encoder import FEATURES
from robot_rl.policies.store import fingerprint
from robot_rl.policy_client.codec import (
    BULK,
    MAX_CHUNKS,
    PROMPT,
    RETURN_FEATURES,
    SAMPLES,
    MessageError,
)
from robot_rl.policy_client.connection import reply_fingerprint
from robot_rl.policy_client.own_client import SERVER
from robot_rl.policy_client.remote_base import RemoteBase
from robot_rl.policy_server.requests import (
    MAX_ROWS,
    MAX_SAMPLES,
    RESERVED,
    Query,
    RequestReader,
    parts_of,
)
from robot_rl.saved_policies.loading import acting_policy


class Inference(Protocol):
    """What a server serves."""

    @property
    def metadata(self) -> dict[str, Any]:
        """Sent to a client when it connects."""
        ...

    waits: bool
    """Whether `check` may wait for another server."""

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
        self.waits = self.base.is_remote
        self._cameras = self.observed.cameras if self.tuned else self.base.spec.cameras
        self._environment, self._fingerprint = environment, _identity(networks)
        self._generator = torch.Generator().manual_seed(seed)

    @property
    def metadata(self) -> dict[str, Any]:
        spec, observed, environment = self.base.spec, self.observed, self._environment
        return {
            "server": SERVER,
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
            "max_chunks": MAX_CHUNKS,
            "reserved": list(RESERVED),
            "environment": dict(environment),
            **self._description,
        }

    @property
    def _description(self) -> dict[str, Any]:
        """What `base=remote` needs to know. A tuned policy appears as a base that draws its own noise."""
        description: dict[str, Any] = {"spec": self._spec.as_dict()}
        if self.base.spec.instruction:
            description["example_instruction"] = self.base.example_instruction
        if self.tuned:
            return description
        description["feature_size"] = self.base.feature_size
        if isinstance(self.base, ImitationPolicy | RemoteBase):
            ranges = self.base.state_normalizer
            description["state_range"] = {
                "center": ranges.center.tolist(),
                "half_range": ranges.half_range.tolist(),
            }
        return description

    @property
    def _spec(self) -> BaseSpec:
        spec, observed = self.base.spec, self.observed
        if not self.tuned:
            return spec
        return replace(
            spec,
            horizon=self.steps,
            execute=self.policy.execute or spec.execute,
            noise_shape=None,
            deterministic=False,
            cameras=self._cameras,
            image_size=observed.image_size if self._cameras else None,
        )

    @property
    def steps(self) -> int:
        """Steps of a reply: all that a base predicts, or those that a tuned policy chose among."""
        return self.base.spec.execute if self.tuned else self.base.spec.horizon

    def check(self, request: Mapping[str, Any]) -> Query:
        spec, reads_features = self.base.spec, FEATURES in request and not self.tuned
        if reads_features and (size := self.base.feature_size) is not None:
            reader = RequestReader(request, [FEATURES], [], 0)
            obs: dict[str, NDArray[Any]] = {FEATURES: reader.floats(FEATURES, (size,))}
        else:
            reader, obs = self._observed(request)
        why_none = "a tuned policy draws its own" if self.tuned else "this base has no noise input"
        noise = reader.noise(None if self.tuned else spec.noise_shape, why_none)
        reader.check_size()
        samples = reader.samples
        if self.tuned and samples > 1:
            raise MessageError(f"{SAMPLES} is for base policies: a tuned one chooses among its own samples")
        if samples > 1 and spec.noise_shape is None:
            raise MessageError(
                f"{SAMPLES}: this base has no noise input, so it gives one sample of a request"
            )
        bulk, features = reader.flag(BULK), reader.flag(RETURN_FEATURES)
        if self.tuned and (bulk or features):
            raise MessageError(f"{BULK if bulk else RETURN_FEATURES} is for base policies")
        if features and self.base.feature_size is None:
            raise MessageError(f"{RETURN_FEATURES}: this base gives no features")
        return Query(obs, samples, noise, reader.seed, bulk, reader.rows is not None, features)

    @torch.no_grad()
    def infer(self, queries: Sequence[Query]) -> list[dict[str, Any]]:
        replies: list[dict[str, Any]] = [{}] * len(queries)
        kinds = [(query.samples, FEATURES in query.obs) for query in queries]
        for kind in dict.fromkeys(kinds):
            for part in parts_of([i for i, other in enumerate(kinds) if other == kind], queries):
                for i, reply in zip(part, self._batch([queries[i] for i in part]), strict=True):
                    replies[i] = reply
        return replies

    def _batch(self, queries: Sequence[Query]) -> list[dict[str, Any]]:
        """Replies to requests of equal numbers of samples, for observations or for features."""
        device = self.base.device
        obs = {
            name: torch.from_numpy(np.concatenate([query.obs[name] for query in queries])).to(device)
            for name in queries[0].obs
        }
        counts = [query.rows for query in queries]
        if self.tuned:
            generators = [
                generator
                for query, count in zip(queries, counts, strict=True)
                for generator in [self._generator_of(query)] * count
            ]
            chosen = _finite(self.policy.choose_chunks(obs, generators)).cpu().split(counts)
            return [_reply(query, actions=own) for query, own in zip(queries, chosen, strict=True)]
        noise = actions = None
        samples = queries[0].samples
        if samples and self.base.spec.noise_shape is not None:
            noise = torch.cat([self._drawn(query, n) for query, n in zip(queries, counts, strict=True)])
        if FEATURES not in obs and any(query.features for query in queries):
            obs[FEATURES] = self.base.features(obs)
        if samples:
            actions = _finite(sample_base(self.base, obs, noise, samples if noise is not None else 1).actions)
        parts = [
            [None] * len(queries) if value is None else value.cpu().split(counts)
            for value in (actions, noise, obs.get(FEATURES))
        ]
        replies = []
        for query, chunks, used, seen in zip(queries, *parts, strict=True):
            more = {"samples": chunks, "noise": used} if query.bulk else {}
            if query.features:
                more["features"] = seen
            replies.append(_reply(query, actions=None if chunks is None else chunks[:, 0], **more))
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

    def _observed(self, request: Mapping[str, Any]) -> tuple[RequestReader, dict[str, NDArray[Any]]]:
        """The observations [B, To, …] of a request, and what reads the rest of it."""
        spec, size = self.base.spec, self.observed.image_size
        names = ["state", *(f"images.{camera}" for camera in self._cameras)]
        told = [INSTRUCTION] if spec.instruction else []
        reader = RequestReader(request, names, [*told, PROMPT], spec.obs_steps)
        obs: dict[str, NDArray[Any]] = {"state": reader.floats("state", (self.observed.state_size,))}
        for name in names[1:]:
            obs[name] = reader.image(name, size)
        if spec.instruction:
            obs[INSTRUCTION] = self._instruction(request, reader)
        return reader, obs

    def _instruction(self, request: Mapping[str, Any], reader: RequestReader) -> NDArray[np.uint8]:
        """The instructions [B, To, L]: a prompt for all rows, or an encoded array."""
        try:
            if INSTRUCTION in request:
                encoded = reader.uint8(INSTRUCTION, (INSTRUCTION_BYTES,))
                texts = {
                    decode_instruction(row)
                    for row in np.unique(encoded.reshape(-1, INSTRUCTION_BYTES), axis=0)
                }
            else:
                prompt = request.get(PROMPT)
                if not isinstance(prompt, str):
                    raise MessageError(f"{PROMPT} is missing: this policy reads an instruction, as a text")
                shape = (reader.rows or 1, self.base.spec.obs_steps, 1)
                encoded, texts = np.tile(encode_instruction(prompt), shape), {prompt}
            for text in texts:
                self.base.check_instruction(text)
        except ValueError as error:
            raise MessageError(str(error)) from error
        return encoded.copy()


def _identity(networks: BasePolicy | FinetunedPolicy) -> str:
    """16 hex digits of the sha256 of what actions depend on: weights, and the options of the networks."""
    base = networks.base if isinstance(networks, FinetunedPolicy) else networks
    holders = [networks.spec, base.spec, *([base.config] if isinstance(base, ImitationPolicy) else [])]
    # Without those at their defaults: a later version may have more of them.
    options = [
        {
            option.name: value
            for option in fields(one)
            if (value := getattr(one, option.name)) != option.default
        }
        for one in holders
    ]
    return reply_fingerprint(fingerprint(networks).encode(), json.dumps(options, default=asdict).encode())


def _finite(actions: Tensor) -> Tensor:
    """Raises RuntimeError if an action is no number, by the policy's weights or by what was observed."""
    if not actions.isfinite().all():
        raise RuntimeError("its actions are not finite")
    return actions


def _reply(query: Query, **arrays: Tensor | None) -> dict[str, Any]:
    """The arrays [B, …] of a reply; those of a request without a batch lose their first axis."""
    values = {name: value.numpy() for name, value in arrays.items() if value is not None}
    return values if query.batched else {name: value[0] for name, value in values.items()}
