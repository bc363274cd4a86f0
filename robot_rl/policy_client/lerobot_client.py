"""Client of a LeRobot policy behind `robot-rl serve`; its actions have to be declared in the options.

In addition it takes batches, several observation steps, and noise if its actions depend on that alone.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from robot_rl.envs.instruction import decode_instruction
from robot_rl.policy_client.codec import BATCH, BULK, NOISE, split_rows
from robot_rl.policy_client.config import RemoteConfig
from robot_rl.policy_client.connection import Ask, PolicyConnection, reply_fingerprint
from robot_rl.policy_client.openpi_client import OpenpiClient

LEROBOT: Final = "robot-rl/lerobot"
"""What the metadata of such a server calls it."""
_Size = Annotated[int, msgspec.Meta(ge=1, le=4096)]


class _Observation(msgspec.Struct):
    obs_steps: _Size
    prompt: bool


class _Metadata(msgspec.Struct):
    """What is used of the metadata."""

    observation: _Observation
    noise: tuple[_Size, _Size] | None
    max_batch: _Size


class LeRobotClient(OpenpiClient):
    """Asks a server of a LeRobot policy, a whole batch at once."""

    def __init__(
        self, connection: PolicyConnection, config: RemoteConfig, environment: Mapping[str, Any]
    ) -> None:
        """See `OpenpiClient`.

        Raises:
            ValueError: also if the server describes itself in another way.
        """
        try:
            self._described = msgspec.convert(connection.metadata, _Metadata)
        except msgspec.ValidationError as error:
            raise ValueError(
                f"{connection.url} describes itself in another way ({error}): update it"
            ) from None
        self.obs_steps = self._described.observation.obs_steps
        self.reads_prompt = self._described.observation.prompt
        super().__init__(connection, config, environment)
        if self._described.noise is not None:
            self.spec = replace(self.spec, noise_shape=self._described.noise, deterministic=True)

    def sample(
        self, obs: Mapping[str, NDArray[Any]], noise: NDArray[np.float32] | None, samples: int
    ) -> NDArray[np.float32]:
        """Chunks [B, N, H, A] for observations [B, To, …] and their noise [B, N, Hn, Dn].

        Raises:
            PolicyLost: if the server does not give them.
        """
        if noise is None:
            # Each row is another observation, for which the policy draws noise.
            arrays = {name: np.repeat(array, samples, 0) for name, array in obs.items()}
        else:
            arrays = {**obs, NOISE: noise}
        found = [self._batch(part) for part in split_rows(arrays, self._described.max_batch)]
        shape = (-1, samples, self.spec.horizon, self.spec.action_size)
        return np.concatenate(found).reshape(shape)

    def _batch(self, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Chunks [B, N, H, A] for observations [B, To, …] and noise [B, N, Hn, Dn]; N is 1 without it."""
        count, samples = len(arrays["state"]), 1
        request = {**self._request(arrays), BATCH: count, BULK: True}
        if NOISE in arrays:
            request[NOISE] = arrays[NOISE]
            samples = arrays[NOISE].shape[1]
        found = self._connection.ask(request).get("samples")
        wanted = (count, samples, self.spec.horizon, self.spec.action_size)
        if not isinstance(found, np.ndarray) or found.dtype.kind != "f" or found.shape != wanted:
            raise self._connection.lost(f"its actions are no array of floats {list(wanted)}")
        return self._actions(found)

    def _prompt(self, told: NDArray[np.uint8]) -> Any:
        """The texts of encoded instructions [B, To, L], or that of one [L]."""
        return decode_instruction(told) if told.ndim == 1 else [decode_instruction(row[-1]) for row in told]

    def _fingerprint(self, welcome: bytes, ask: Ask) -> str:
        """Names the policy by its metadata, which have the fingerprint of its files."""
        del ask
        return reply_fingerprint(welcome)
