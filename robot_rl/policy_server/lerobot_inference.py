"""Serves a LeRobot policy: checks requests by LeRobot's own names, and gives the policy several at once."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from robot_rl.policy_client.codec import (
    BATCH,
    BULK,
    NOISE,
    PROMPT,
    RETURN_FEATURES,
    SAMPLES,
    SEED,
    MessageError,
)
from robot_rl.policy_client.lerobot_client import LEROBOT
from robot_rl.policy_server.lerobot_process import VISUAL, LeRobotProcess, fingerprint
from robot_rl.policy_server.requests import MAX_ROWS, MAX_SAMPLES, Query, RequestReader, parts_of

_MAX_PROMPT: Final = 1024
_SEEDS: Final = 2**31


class LeRobotInference:
    """Answers with a LeRobot policy's chunks, in the units of the dataset that it was trained on."""

    waits = False

    def __init__(self, process: LeRobotProcess, directory: Path, seed: int) -> None:
        """`seed` is that of noise for which a client gives none."""
        self._process, self.policy = process, process.policy
        self._fingerprint = fingerprint(directory)
        self._generator = torch.Generator().manual_seed(seed)
        features = self.policy.features.items()
        self._images = {name: (shape[1], shape[2]) for name, (kind, shape) in features if kind == VISUAL}
        self._numbers = {name: shape for name, (kind, shape) in features if kind != VISUAL}

    @property
    def metadata(self) -> dict[str, Any]:
        policy = self.policy
        reserved = [SEED, BULK, BATCH] if policy.noise is None else [NOISE, SAMPLES, SEED, BULK, BATCH]
        return {
            "server": LEROBOT,
            "policy": policy.type,
            "fingerprint": self._fingerprint,
            "observation": {
                "obs_steps": policy.obs_steps,
                "numbers": {name: list(shape) for name, shape in self._numbers.items()},
                "images": {name: [*size, 3] for name, size in self._images.items()},
                "prompt": policy.prompt,
            },
            "action": {
                "shape": list(policy.shape),
                "execute": policy.execute,
                "units": "those of the policy's dataset",
            },
            "noise": None if policy.noise is None else list(policy.noise),
            "deterministic": policy.deterministic,
            "max_samples": 1 if policy.noise is None else MAX_SAMPLES,
            "max_batch": MAX_ROWS,
            "reserved": reserved,
        }

    def check(self, request: Mapping[str, Any]) -> Query:
        policy = self.policy
        reader = RequestReader(request, [*self._numbers, *self._images], [PROMPT], policy.obs_steps)
        obs: dict[str, NDArray[Any]] = {
            name: reader.floats(name, shape) for name, shape in self._numbers.items()
        }
        for name, size in self._images.items():
            obs[name] = reader.image(name, size)
        prompts = self._prompts(request, reader.rows or 1) if policy.prompt else ()
        noise = reader.noise(policy.noise, f"actions of this {policy.type} policy do not depend on it alone")
        reader.check_size()
        if reader.samples > 1 and policy.noise is None:
            raise MessageError(f"{SAMPLES}: this {policy.type} policy takes no noise; send more requests")
        if reader.flag(RETURN_FEATURES):
            raise MessageError(f"{RETURN_FEATURES}: a LeRobot policy gives no features")
        bulk, batched = reader.flag(BULK), reader.rows is not None
        return Query(obs, reader.samples, noise, reader.seed, bulk, batched, prompts=prompts)

    def infer(self, queries: Sequence[Query]) -> list[dict[str, Any]]:
        replies: list[dict[str, Any]] = [{}] * len(queries)
        for rows in self._passes(queries):
            answers = self._batch([queries[i] for i in rows])
            for i, reply in zip(rows, answers, strict=True):
                replies[i] = reply
        return replies

    def _passes(self, queries: Sequence[Query]) -> list[list[int]]:
        """Numbers of the requests that are answered together, which ask for no more than a single one may.

        Those with noise need equal numbers of samples. A policy that draws noise itself is seeded once for
        all rows of a pass, so that a request with a seed has to be alone.
        """
        groups: dict[tuple[str, int], list[int]] = {}
        for i, query in enumerate(queries):
            alone = query.seed is not None and self.policy.noise is None and not self.policy.deterministic
            groups.setdefault(("alone", i) if alone else ("samples", query.samples), []).append(i)
        return [part for group in groups.values() for part in parts_of(group, queries)]

    def _batch(self, queries: Sequence[Query]) -> list[dict[str, Any]]:
        obs = {name: np.concatenate([query.obs[name] for query in queries]) for name in queries[0].obs}
        prompts = tuple(prompt for query in queries for prompt in query.prompts)
        counts = [query.rows for query in queries]
        samples, noise, seed = queries[0].samples, None, queries[0].seed
        if self.policy.noise is not None:
            noise = np.concatenate([self._drawn(query, n) for query, n in zip(queries, counts, strict=True)])
        elif seed is None:
            seed = int(torch.randint(_SEEDS, (), generator=self._generator))
        flat = None if noise is None else noise.reshape(-1, *noise.shape[2:])
        chunks = self._process.predict(obs, prompts, flat, seed)
        chunks = chunks.reshape(-1, samples, *self.policy.shape)
        ends = np.cumsum(counts)[:-1]
        given = [None] * len(queries) if noise is None else np.split(noise, ends)
        return [
            _reply(query, actions, used)
            for query, actions, used in zip(queries, np.split(chunks, ends), given, strict=True)
        ]

    def _drawn(self, query: Query, rows: int) -> NDArray[np.float32]:
        """Noise [B, N, Hn, Dn] of a request."""
        if query.noise is not None:
            return query.noise
        assert self.policy.noise is not None
        generator = self._generator
        if query.seed is not None:
            generator = torch.Generator().manual_seed(query.seed)
        return torch.randn(rows, query.samples, *self.policy.noise, generator=generator).numpy()

    def _prompts(self, request: Mapping[str, Any], rows: int) -> tuple[str, ...]:
        """The instructions of the observations."""
        given = request.get(PROMPT)
        told = [given] * rows if isinstance(given, str) else given
        if not isinstance(told, list) or not all(isinstance(text, str) for text in told):
            raise MessageError(f"{PROMPT} is missing: this policy reads an instruction, as a text")
        if len(told) != rows or any(len(text) > _MAX_PROMPT for text in told):
            raise MessageError(
                f"{PROMPT}: send one text, or {rows} of them, of {_MAX_PROMPT} characters at most"
            )
        return tuple(told)


def _reply(query: Query, actions: NDArray[np.float32], noise: NDArray[np.float32] | None) -> dict[str, Any]:
    """The reply to a request: actions [B, N, H, A] and their noise [B, N, Hn, Dn]."""
    reply = {"actions": actions[:, 0]}
    if query.bulk:
        reply |= {"samples": actions} if noise is None else {"samples": actions, "noise": noise}
    return reply if query.batched else {name: value[0] for name, value in reply.items()}
