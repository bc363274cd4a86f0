"""`base=remote`: a base policy that asks a policy server."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robot_rl.envs.instruction import INSTRUCTION, INSTRUCTION_BYTES, encode_instruction
from robot_rl.policies.bases.base_policy import (
    BasePolicy,
    BaseSpec,
    Chunk,
    ObservationHistory,
    check_features,
    check_images,
    check_instructions,
    check_observation,
    is_steered_by_noise,
    random_observations,
)
from robot_rl.policies.nets.encoder import FEATURES
from robot_rl.policies.nets.normalizer import Normalizer
from robot_rl.policies.registry import LOADERS
from robot_rl.policies.store import Record, read_weights, write_files
from robot_rl.policy_client.config import RemoteConfig
from robot_rl.policy_client.connection import PolicyConnection, PolicyLost
from robot_rl.policy_client.lerobot_client import LEROBOT, LeRobotClient
from robot_rl.policy_client.openpi_client import OpenpiClient
from robot_rl.policy_client.own_client import SERVER, OwnClient, StateRange

KIND = "remote"

_MOST_UNDERSTOOD = 1000
"""Instructions of which a base remembers that its server has taken them."""


class PolicyServerApi(Protocol):
    """A kind of policy server, connected."""

    spec: BaseSpec
    environment: Mapping[str, Any]
    state_range: StateRange | None
    example_instruction: str | None
    """An instruction that the policy can be given, if that is known."""

    @property
    def feature_size(self) -> int | None: ...

    def sample(
        self, obs: Mapping[str, NDArray[Any]], noise: NDArray[np.float32] | None, samples: int
    ) -> NDArray[np.float32]: ...

    def features(self, obs: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]: ...


class RemoteBase(BasePolicy):
    """A base policy behind a policy server.

    It is saved with the server's address and fingerprint in place of weights.
    """

    identity: Tensor
    """The server's fingerprint as bytes, so that this policy's own fingerprint depends on it."""
    is_remote = True

    def __init__(self, config: RemoteConfig, environment: Mapping[str, Any]) -> None:
        """Connect.

        Args:
            config: the address and, for a server of openpi, the mapping.
            environment: description of the task's environment, for a server that does not describe its own.

        Raises:
            ValueError: if there is no server, or it cannot be used as a base.
        """
        super().__init__()
        self.config = config
        connection = PolicyConnection(config.url, config.timeout, config.certificate)
        self._server: PolicyServerApi
        server = connection.metadata.get("server")
        if server == SERVER:
            self._server = OwnClient(connection, config)
        else:
            kind = LeRobotClient if server == LEROBOT else OpenpiClient
            self._server = kind(connection, config, environment)
        self.spec, self.environment = self._server.spec, self._server.environment
        self.state_normalizer = Normalizer(self.spec.state_size)
        if ranges := self._server.state_range:
            self.state_normalizer.center.copy_(torch.tensor(ranges.center))
            self.state_normalizer.half_range.copy_(torch.tensor(ranges.half_range))
        name = connection.fingerprint.encode()
        self._understood: set[str] = set()
        """Instructions that the server has taken."""
        self.register_buffer("identity", torch.frombuffer(bytearray(name), dtype=torch.uint8))

    @property
    def device(self) -> torch.device:
        return self.identity.device

    @property
    def example_instruction(self) -> str:
        return self._server.example_instruction or super().example_instruction

    def check_instruction(self, text: str) -> None:
        """See `BasePolicy.check_instruction`: our own servers are asked about an observation with it."""
        known = text in self._understood
        if known or not self.spec.instruction or not isinstance(self._server, OwnClient):
            return
        obs = random_observations(self, 1)
        told = torch.from_numpy(encode_instruction(text))
        try:
            self.sample({**obs, INSTRUCTION: told.expand(1, self.spec.obs_steps, -1)})
        except PolicyLost as error:
            raise ValueError(str(error)) from None
        if len(self._understood) >= _MOST_UNDERSTOOD:
            self._understood.clear()
        self._understood.add(text)

    @torch.no_grad()
    def sample(
        self,
        obs: ObservationHistory,
        *,
        noise: Tensor | None = None,
        num_samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> Chunk:
        """See `BasePolicy.sample`.

        Raises:
            PolicyLost: also if the server does not answer, or was replaced.
        """
        return self._sample(self._arrays(obs), noise, num_samples, generator)

    @torch.no_grad()
    def sample_from_features(
        self,
        features: Tensor,
        *,
        noise: Tensor | None = None,
        num_samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> Chunk:
        """See `BasePolicy.sample_from_features`; errors as of `sample`."""
        if self.feature_size is None:
            return super().sample_from_features(features)
        seen = check_features(features, self.feature_size).float().cpu().numpy()
        return self._sample({FEATURES: seen}, noise, num_samples, generator)

    def _sample(
        self,
        arrays: Mapping[str, NDArray[Any]],
        noise: Tensor | None,
        num_samples: int,
        generator: torch.Generator | None,
    ) -> Chunk:
        batch = len(next(iter(arrays.values())))
        if self.spec.noise_shape is None:
            if noise is not None:
                raise ValueError("this policy takes no noise")
        elif noise is None:
            noise = self.draw_noise(batch, num_samples, generator)
        elif noise.shape != (expected := (batch, num_samples, *self.spec.noise_shape)):
            raise ValueError(f"noise has shape {tuple(noise.shape)}; this call needs {expected}")
        given = None if noise is None else noise.float().cpu().numpy()
        # Without a noise input the samples of a deterministic policy are equal.
        count = 1 if given is None and self.spec.deterministic else num_samples
        actions = torch.from_numpy(self._server.sample(arrays, given, count)).to(self.device)
        return Chunk(actions.expand(-1, num_samples, -1, -1), noise)

    @property
    def feature_size(self) -> int | None:
        return self._server.feature_size

    def features(self, obs: ObservationHistory) -> Tensor:
        """See `BasePolicy.features`; errors as of `sample`."""
        if self.feature_size is None:
            return super().features(obs)
        return torch.from_numpy(self._server.features(self._arrays(obs))).to(self.device)

    def _arrays(self, obs: ObservationHistory) -> dict[str, NDArray[Any]]:
        """Checked observations as arrays."""
        state, images = check_observation(obs, self.spec), check_images(obs, self.spec)
        arrays = {"state": state.float().cpu().numpy()}
        for camera, each in zip(self.spec.cameras, images, strict=True):
            arrays[f"images.{camera}"] = each.cpu().numpy()
        if self.spec.instruction:
            told = check_instructions(obs).cpu().numpy()
            unused = INSTRUCTION_BYTES - told.shape[-1]
            arrays[INSTRUCTION] = np.pad(told, ((0, 0), (0, 0), (0, unused)))
        return arrays

    def check_noise(self) -> None:
        """Check that the server's noise input is one.

        Raises:
            ValueError: if other noise gives the same actions, or the same noise others.
        """
        if self.spec.noise_shape and not is_steered_by_noise(self, random_observations(self, 2)):
            raise ValueError(
                f"{self.config.url} says that its policy takes noise, but its actions do not depend on it "
                "alone: serve another policy"
            )

    def save(self, directory: Path, meta: Mapping[str, Any]) -> None:
        write_files(
            directory,
            kind=KIND,
            config=asdict(self.config),
            spec=self.spec.as_dict(),
            meta=meta,
            weights=self.state_dict(),
        )


def connect_base(config: RemoteConfig, environment: Mapping[str, Any]) -> RemoteBase:
    """Connect to a policy server, and probe what it says of its policy; errors as of `RemoteBase`."""
    base = RemoteBase(config, environment)
    base.check_noise()
    return base


def _load(directory: Path, record: Record) -> RemoteBase:
    """Connect to the server of a saved policy.

    Raises:
        ValueError: if it is not there or serves another policy, or files are damaged.
    """
    try:
        config = msgspec.convert(record.config, RemoteConfig)
        base = RemoteBase(config, record.meta["environment"])
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise ValueError(f"{directory} is damaged: {error!r}") from error
    spec = msgspec.convert(record.spec, BaseSpec)
    connected = base.identity.clone()
    read_weights(directory, record, base)
    if spec != base.spec or not torch.equal(connected, base.identity):
        raise PolicyLost(
            f"{config.url} serves another policy than {directory} was made with: serve that one, or change "
            "the url in its policy.json"
        )
    return base


LOADERS[KIND] = _load
