"""Builds the observation that policies get from the raw observations of an environment.

Datasets, simulation and robots all use `make_observation`, so a policy sees the same numbers in
training and in deployment.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from operator import index

import gymnasium as gym
import numpy as np

from robot_rl.envs.instruction import INSTRUCTION, INSTRUCTION_BYTES

Observation = dict[str, np.ndarray]
"""`state` float32 [..., S] in SI units, radians, quaternions xyzw; `images.<camera>` uint8 [..., H, W, 3];
`instruction` uint8 [..., L], as `robot_rl.envs.instruction` encodes it."""

IMAGE_PREFIX = "images."
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True)
class ObservationSpec:
    """Which raw keys make up an observation, in order."""

    state_keys: tuple[str, ...]
    state_dims: tuple[int, ...]
    cameras: tuple[str, ...] = ()
    image_size: tuple[int, int] = (84, 84)
    instruction: bool = False
    """Whether the instruction is observed."""

    @property
    def state_size(self) -> int:
        return sum(self.state_dims)

    def as_dict(self) -> dict:
        return {
            "state_keys": list(self.state_keys),
            "state_dims": list(self.state_dims),
            "cameras": list(self.cameras),
            "image_size": list(self.image_size),
            # Left out where there is none, as in descriptions from before there were instructions.
            **({"instruction": True} if self.instruction else {}),
        }

    @classmethod
    def from_dict(cls, spec: Mapping) -> "ObservationSpec":
        """Convert from the dict that `as_dict` returns, usually read from a file.

        Raises:
            ValueError: if it is not such a dict, or a name is not valid; see `check_name`.
        """
        try:
            height, width = map(index, spec["image_size"])
            made = cls(
                tuple(spec["state_keys"]),
                tuple(map(index, spec["state_dims"])),
                tuple(spec["cameras"]),
                (height, width),
                bool(spec.get("instruction", False)),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"observation_spec is damaged ({error!r})") from error
        for name in (*made.state_keys, *made.cameras):
            check_name(name)
        return made


def check_name(name: str) -> str:
    """Check the name of an array or camera, which becomes part of a path, and return it.

    Raises:
        ValueError: if it has characters other than letters, digits, `_`, `-` and `.`, or begins with a dot.
    """
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise ValueError(
            f"{name!r:.100} is not a valid name: use letters, digits, _, - and ., and no dot first"
        )
    return name


def observation_space(spec: ObservationSpec) -> gym.spaces.Dict:
    """The space of a single frame of `make_observation`."""
    spaces: dict[str, gym.Space] = {"state": gym.spaces.Box(-np.inf, np.inf, (spec.state_size,), np.float32)}
    for camera in spec.cameras:
        spaces[IMAGE_PREFIX + camera] = gym.spaces.Box(0, 255, (*spec.image_size, 3), np.uint8)
    if spec.instruction:
        spaces[INSTRUCTION] = gym.spaces.Box(0, 255, (INSTRUCTION_BYTES,), np.uint8)
    return gym.spaces.Dict(spaces)


def make_observation(raw: Mapping[str, np.ndarray], spec: ObservationSpec) -> Observation:
    """Build the observation from raw arrays of shape [..., D] (or [..., H, W, 3] for images).

    Raises:
        KeyError: if a raw key of the spec is missing.
        ValueError: if the size of a raw array differs from the spec, or the state is not finite.
    """
    parts = []
    for key, dim in zip(spec.state_keys, spec.state_dims, strict=True):
        value = np.asarray(raw[key], np.float32)
        if dim == 1 and (value.ndim == 0 or value.shape[-1] != 1):
            value = value[..., None]
        if value.shape[-1] != dim:
            raise ValueError(f"observation {key!r} has size {value.shape[-1]}, the spec says {dim}")
        parts.append(value)
    state = np.concatenate(parts, axis=-1)
    if not np.isfinite(state).all():
        bad = [k for k, part in zip(spec.state_keys, parts, strict=True) if not np.isfinite(part).all()]
        raise ValueError(f"observation is not finite: {', '.join(bad)}")
    observation = {"state": state}
    for camera in spec.cameras:
        image = np.asarray(raw[IMAGE_PREFIX + camera])
        if image.dtype != np.uint8 or image.shape[-3:] != (*spec.image_size, 3):
            raise ValueError(
                f"image of camera {camera!r} is {image.dtype} {image.shape[-3:]}, "
                f"the spec says uint8 {(*spec.image_size, 3)}"
            )
        observation[IMAGE_PREFIX + camera] = image
    if spec.instruction:
        instruction = np.asarray(raw[INSTRUCTION])
        if instruction.dtype != np.uint8 or instruction.shape[-1:] != (INSTRUCTION_BYTES,):
            raise ValueError(
                f"the instruction is {instruction.dtype} {instruction.shape[-1:]}, not uint8 "
                f"{(INSTRUCTION_BYTES,)}"
            )
        observation[INSTRUCTION] = instruction
    return observation
