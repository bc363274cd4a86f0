"""A policy behind `robot-rl serve`, which describes its observations, actions and noise."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from robot_rl.envs.instruction import encode_instruction
from robot_rl.policies.bases.base_policy import BaseSpec
from robot_rl.policy_client.codec import (
    BATCH,
    BULK,
    MAX_CHUNKS,
    NOISE,
    RETURN_FEATURES,
    SAMPLES,
    split_rows,
)
from robot_rl.policy_client.config import RemoteConfig
from robot_rl.policy_client.connection import Ask, PolicyConnection

SERVER: Final = "robot-rl"
"""What the metadata of such a server calls it."""
_MAX_SIZE: Final = 4096
"""Largest size in a description."""


class StateRange(msgspec.Struct):
    """Range of each state dimension in the base's training data [S]."""

    center: list[float]
    half_range: list[float]


class _Metadata(msgspec.Struct):
    """What is used of the metadata."""

    fingerprint: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]
    max_batch: int
    environment: dict[str, Any]
    spec: BaseSpec
    max_chunks: int = MAX_CHUNKS
    state_range: StateRange | None = None
    feature_size: int | None = None
    example_instruction: str | None = None


class OwnClient:
    """Asks a server of `robot-rl serve`, a whole batch at once."""

    def __init__(self, connection: PolicyConnection, config: RemoteConfig) -> None:
        """Read the metadata of a connected server.

        Raises:
            ValueError: if its description cannot be used, or options are for other servers.
        """
        self._connection = connection
        if config.mapping:
            raise ValueError(
                f"{connection.url} is served by robot-rl and describes its observations and actions: leave "
                f"out base.{config.mapping[0]}"
            )
        found = _read(connection)
        spec, execute = found.spec, config.execute or found.spec.execute
        if execute > spec.horizon:
            raise ValueError(f"base.execute={execute}: {connection.url} predicts {spec.horizon} steps")
        self.spec = replace(spec, execute=execute)
        self.environment: Mapping[str, Any] = found.environment
        self._max_batch, self._max_chunks = found.max_batch, found.max_chunks
        self.state_range, self.feature_size = found.state_range, found.feature_size
        self.example_instruction = found.example_instruction
        connection.identify(_fingerprint)

    def sample(
        self, obs: Mapping[str, NDArray[Any]], noise: NDArray[np.float32] | None, samples: int
    ) -> NDArray[np.float32]:
        """Chunks [B, N, H, A] for observations [B, To, …] or their features, and noise [B, N, Hn, Dn].

        Raises:
            PolicyLost: if the server does not give them.
        """
        shape = (samples, self.spec.horizon, self.spec.action_size)
        if noise is None:
            # The server draws what it needs of each row.
            repeated = {name: array.repeat(samples, 0) for name, array in obs.items()}
            actions = self._ask(repeated, "actions", shape[1:]).reshape(-1, *shape)
        else:
            actions = self._ask({**obs, NOISE: noise}, "samples", shape, **{BULK: True})
        if not (np.abs(actions) <= 1).all():
            raise self._connection.lost("its actions are not in [-1, 1]")
        return actions

    def features(self, obs: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Features [B, D] of observations [B, To, …]; errors as of `sample`."""
        assert self.feature_size is not None
        # No samples: the policy's head does not run.
        features = self._ask(obs, "features", (self.feature_size,), **{RETURN_FEATURES: True, SAMPLES: 0})
        if not np.isfinite(features).all():
            raise self._connection.lost("its features are not finite")
        return features

    def _ask(
        self, arrays: Mapping[str, NDArray[Any]], name: str, shape: tuple[int, ...], **more: int
    ) -> NDArray[np.float32]:
        """An array [B, *shape] of the reply to arrays [B, …], and to more that is the same for all rows."""
        found = []
        for part in split_rows(arrays, self._max_batch, self._max_chunks):
            count = len(next(iter(part.values())))
            value = self._connection.ask({**part, BATCH: count, **more}).get(name)
            fits = isinstance(value, np.ndarray) and value.shape == (count, *shape)
            if not isinstance(value, np.ndarray) or not fits or value.dtype != np.float32:
                raise self._connection.lost(f"its {name} are no float32 array {[count, *shape]}")
            found.append(value)
        return np.concatenate(found)


def _fingerprint(metadata: Mapping[str, Any], welcome: bytes, ask: Ask) -> str:
    del welcome, ask
    return str(metadata.get("fingerprint"))


def _read(connection: PolicyConnection) -> _Metadata:
    """Check the metadata, which is untrusted."""
    try:
        found = msgspec.convert(connection.metadata, _Metadata)
    except msgspec.ValidationError as error:
        raise ValueError(f"{connection.url} describes itself in another way ({error}): update it") from None
    sizes = [found.max_batch, found.max_chunks]
    spec, bounds = found.spec, found.state_range
    sizes += [spec.state_size, spec.action_size, spec.horizon, spec.execute, spec.obs_steps]
    sizes += [*(spec.noise_shape or ()), *(spec.image_size or ()), found.feature_size or 1]
    if bounds and {len(bounds.center), len(bounds.half_range)} != {spec.state_size}:
        sizes.append(0)
    if not all(1 <= size <= _MAX_SIZE for size in sizes):
        raise ValueError(f"{connection.url} describes itself with sizes that cannot be")
    if bounds and not (np.isfinite([bounds.center, bounds.half_range]).all() and min(bounds.half_range) > 0):
        raise ValueError(f"{connection.url} describes itself with a range of states that cannot be")
    if found.example_instruction is not None:
        encode_instruction(found.example_instruction)
    return found
