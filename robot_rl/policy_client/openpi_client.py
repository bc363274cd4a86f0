"""A policy behind a stock openpi server, whose observations and actions the configuration declares."""

import sys
import weakref
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from robot_rl.envs.action import ActionSpec, spec_from_list
from robot_rl.envs.instruction import INSTRUCTION, decode_instruction, encode_instruction
from robot_rl.envs.observation import IMAGE_PREFIX, ObservationSpec
from robot_rl.policies.bases.base_policy import BaseSpec
from robot_rl.policy_client.config import RemoteConfig
from robot_rl.policy_client.connection import Ask, PolicyConnection, reply_fingerprint
from robot_rl.policy_client.own_client import StateRange

_NEEDED: Final = ("state", "action_units", "action_mode", "action_frame", "gripper")
_MAX_HORIZON: Final = 4096
_ROUNDING: Final = 1.05
"""Size of normalised actions above which clipping is no matter of rounding."""


class OpenpiClient:
    """Asks a stock openpi server: one request for each observation and sample, without noise."""

    obs_steps = 1
    """Frames of an observation that are sent."""
    reads_prompt = True
    """Whether the policy reads an instruction."""

    def __init__(
        self, connection: PolicyConnection, config: RemoteConfig, environment: Mapping[str, Any]
    ) -> None:
        """Check the declared mapping, and find out the horizon and whether the policy draws noise.

        Args:
            connection: to the server.
            config: the mapping.
            environment: description of the task's environment.

        Raises:
            ValueError: if the mapping is incomplete or does not fit the task or the server.
            PolicyLost: if the server does not answer.
        """
        self._connection, self._config, self.environment = connection, config, environment
        self._clipped = True
        """Whether the user knows of clipped actions; those of what is probed here do not count."""
        self.state_range: StateRange | None = None
        self.feature_size = None
        where = connection.url
        if not environment:
            raise ValueError(
                f"{where} does not describe its actions: it can only be the base of a run, base=remote"
            )
        self.example_instruction = first = next(iter(environment.get("instructions", [])), None)
        if config.prompt is not None and not self.reads_prompt:
            raise ValueError(f"base.prompt={config.prompt!r}: {where} serves a policy that reads none")
        told = first if config.prompt is None and self.reads_prompt else None
        self._told = encode_instruction(told) if told else None
        """An instruction, if the task's are sent as prompts."""
        observed = ObservationSpec.from_dict(environment["observation_spec"])
        self._action_spec = spec_from_list(environment["action_spec"])
        _check_mapping(config, where, observed, self._action_spec)
        _check_keys(config, with_prompt=bool(told) or config.prompt is not None)
        ends = list(accumulate(observed.state_dims))
        self._parts = {
            key: slice(end - size, end)
            for key, size, end in zip(observed.state_keys, observed.state_dims, ends, strict=True)
        }
        probe = self._probe(observed)
        first, second = (self._chunk(connection.ask(probe)) for _ in range(2))
        if config.execute is None or config.execute > len(first):
            raise ValueError(
                f"base.execute={config.execute}: {where} predicts {len(first)} steps; say how many of them "
                "are executed"
            )
        self.spec = BaseSpec(
            state_size=observed.state_size,
            action_size=len(self._action_spec),
            horizon=len(first),
            execute=config.execute,
            obs_steps=self.obs_steps,
            noise_shape=None,
            deterministic=bool(np.array_equal(first, second)),
            cameras=tuple(config.cameras),
            image_size=observed.image_size if config.cameras else None,
            instruction=self._told is not None,
        )
        # Without a cycle, which would keep the connection open until garbage is collected.
        itself = weakref.ref(self)

        def fingerprint(metadata: Mapping[str, Any], welcome: bytes, ask: Ask) -> str:
            del metadata
            server = itself()
            assert server
            return server._fingerprint(welcome, ask)

        connection.identify(fingerprint)
        self._clipped = False

    def sample(
        self, obs: Mapping[str, NDArray[Any]], noise: NDArray[np.float32] | None, samples: int
    ) -> NDArray[np.float32]:
        """Chunks [B, N, H, A] for observations [B, 1, …], each of the N from a separate request.

        Raises:
            PolicyLost: if the server does not give them.
        """
        assert noise is None
        chunks = []
        for row in range(len(obs["state"])):
            request = self._request({name: array[row, -1] for name, array in obs.items()})
            chunks += [self._chunk(self._connection.ask(request)) for _ in range(samples)]
        shape = (len(obs["state"]), samples, self.spec.horizon, self.spec.action_size)
        if any(chunk.shape != shape[2:] for chunk in chunks):
            raise self._connection.lost(f"its actions are no longer of shape {list(shape[2:])}")
        return np.stack(chunks).reshape(shape)

    def features(self, obs: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        raise AssertionError("openpi's servers give no features")

    def _request(self, frame: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        """A request about a frame, whose arrays may have more axes in front."""
        config = self._config
        request: dict[str, Any] = {
            name: np.concatenate([frame["state"][..., self._parts[key]] for key in keys], -1)
            for name, keys in config.state.items()
        }
        for camera, name in config.cameras.items():
            request[name] = frame[f"{IMAGE_PREFIX}{camera}"]
        if self._told is not None:
            request[config.prompt_key] = self._prompt(frame[INSTRUCTION])
        elif config.prompt is not None:
            request[config.prompt_key] = config.prompt
        return request

    def _prompt(self, told: NDArray[np.uint8]) -> Any:
        """The text of an encoded instruction [L]."""
        return decode_instruction(told)

    def _chunk(self, reply: Mapping[str, Any]) -> NDArray[np.float32]:
        """The task's actions [H, A] of a reply."""
        found, size = reply.get("actions"), len(self._action_spec)
        if not isinstance(found, np.ndarray) or found.dtype.kind != "f" or found.ndim != 2:
            raise self._connection.lost("its actions are no array of floats [steps, action size]")
        if found.shape[1] != size or not 1 <= len(found) <= _MAX_HORIZON:
            raise self._connection.lost(
                f"its actions have shape {list(found.shape)}, the task's have size {size}"
            )
        return self._actions(found)

    def _actions(self, found: NDArray[Any]) -> NDArray[np.float32]:
        """The task's actions for those of the server [..., A]."""
        if not np.isfinite(found).all():
            raise self._connection.lost("its actions are not finite")
        actions = found.astype(np.float64)
        opened, closed = self._config.gripper or (-1.0, 1.0)
        for i, dim in enumerate(self._action_spec):
            if dim.kind == "gripper":
                actions[..., i] = 2 * (actions[..., i] - opened) / (closed - opened) - 1
            elif self._config.action_units == "si":
                actions[..., i] /= dim.scale
        if not self._clipped and (largest := float(np.abs(actions).max())) > _ROUNDING:
            self._clipped = True
            print(
                f"{self._config.url}: actions are up to {largest:.3g} and are clipped to [-1, 1]: check "
                "base.action_units and base.gripper",
                file=sys.stderr,
            )
        return actions.clip(-1, 1).astype(np.float32)

    def _probe(self, observed: ObservationSpec) -> dict[str, Any]:
        steps = () if self.obs_steps == 1 else (self.obs_steps,)
        frame: dict[str, NDArray[Any]] = {"state": np.zeros((*steps, observed.state_size), np.float32)}
        for camera in self._config.cameras:
            frame[f"{IMAGE_PREFIX}{camera}"] = np.zeros((*steps, *observed.image_size, 3), np.uint8)
        if self._told is not None:
            frame[INSTRUCTION] = self._told
        return self._request(frame)

    def _fingerprint(self, welcome: bytes, ask: Ask) -> str:
        """Names the policy by its metadata and, if it draws no noise, its answer to a fixed observation."""
        if not self.spec.deterministic:
            return reply_fingerprint(welcome)
        observed = ObservationSpec.from_dict(self.environment["observation_spec"])
        return reply_fingerprint(welcome, self._chunk(ask(self._probe(observed))).tobytes())


def _check_mapping(
    config: RemoteConfig, where: str, observed: ObservationSpec, action_spec: ActionSpec
) -> None:
    """Raises ValueError if the mapping is incomplete or does not fit the task."""
    grips = any(dim.kind == "gripper" for dim in action_spec)
    needed = [name for name in _NEEDED if grips or name != "gripper"]
    if missing := [f"base.{name}" for name in needed if not getattr(config, name)]:
        raise ValueError(
            f"{where} does not say what it observes and how it acts: declare {', '.join(missing)} "
            "(docs/serving.md), or serve a policy of this program with `robot-rl serve`"
        )
    for what, named, valid in (
        ("cameras", list(config.cameras), observed.cameras),
        ("state", [key for keys in config.state.values() for key in keys], observed.state_keys),
    ):
        if unknown := [name for name in named if name not in valid]:
            raise ValueError(
                f"base.{what}: the task does not observe {unknown[0]!r}, only {', '.join(valid) or 'none'}"
            )
    motions = [dim for dim in action_spec if dim.kind != "gripper"]
    for option, here in (
        ("action_mode", {dim.kind for dim in motions}),
        ("action_frame", {dim.frame for dim in motions}),
    ):
        if {declared := getattr(config, option)} != here:
            raise ValueError(
                f"base.{option}={declared}: that of the task's actions is {' and '.join(sorted(here))}"
            )


def _check_keys(config: RemoteConfig, *, with_prompt: bool) -> None:
    """Raises ValueError if an entry of a request would take another one's place, or have no values."""
    sent = [*config.cameras.values(), *config.state, *([config.prompt_key] if with_prompt else [])]
    if repeated := [name for name in sent if sent.count(name) > 1]:
        raise ValueError(
            f"base.cameras, base.state and base.prompt_key name {repeated[0]!r} twice: each camera, state "
            "and prompt has its own key of the server"
        )
    if empty := [name for name, keys in config.state.items() if not keys]:
        raise ValueError(f"base.state: {empty[0]!r} has no keys of the task's state")
