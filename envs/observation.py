"""From an environment's raw observations to the one observation that every part speaks of.

Datasets, simulation and robots all go through `make_observation`, so that a policy sees the
same numbers in training and in deployment.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import gymnasium as gym
import numpy as np

Observation = dict[str, np.ndarray]
"""`state` float32 [..., S] in SI units, radians, quaternions xyzw; `images.<camera>` uint8 [..., H, W, 3]."""

IMAGE_PREFIX = "images."
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True)
class ObservationSpec:
    """Which raw keys make up an observation, in order."""

    state_keys: tuple[str, ...]
    state_dims: tuple[int, ...]
    cameras: tuple[str, ...] = ()
    image_size: tuple[int, int] = (84, 84)

    @property
    def state_size(self) -> int:
        return sum(self.state_dims)

    def as_dict(self) -> dict:
        return {
            "state_keys": list(self.state_keys),
            "state_dims": list(self.state_dims),
            "cameras": list(self.cameras),
            "image_size": list(self.image_size),
        }

    @classmethod
    def from_dict(cls, spec: Mapping) -> "ObservationSpec":
        """Read it from a file.

        Raises:
            ValueError: a name is none; see `check_name`.
        """
        for name in (*spec["state_keys"], *spec["cameras"]):
            check_name(name)
        height, width = spec["image_size"]
        return cls(
            tuple(spec["state_keys"]), tuple(spec["state_dims"]), tuple(spec["cameras"]), (height, width)
        )


def check_name(name: str) -> str:
    """The name of an array or of a camera, which becomes part of a path.

    Raises:
        ValueError: it has other characters than letters, digits, `_`, `-` and `.`, or begins with a dot.
    """
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise ValueError(
            f"{name!r:.100} names no array or camera: letters, digits, _, - and . can, no dot first"
        )
    return name


def observation_space(spec: ObservationSpec) -> gym.spaces.Dict:
    """The space of what `make_observation` makes of one moment."""
    spaces: dict[str, gym.Space] = {"state": gym.spaces.Box(-np.inf, np.inf, (spec.state_size,), np.float32)}
    for camera in spec.cameras:
        spaces[IMAGE_PREFIX + camera] = gym.spaces.Box(0, 255, (*spec.image_size, 3), np.uint8)
    return gym.spaces.Dict(spaces)


def make_observation(raw: Mapping[str, np.ndarray], spec: ObservationSpec) -> Observation:
    """Build the observation from raw arrays of shape [..., D] (or [..., H, W, 3] for images).

    Raises:
        KeyError: a raw key that the spec names is missing.
        ValueError: a raw array has another size than the spec says, or a state is not finite.
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
    return observation
