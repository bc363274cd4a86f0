"""Checks the description of an environment, as datasets and policies store it (`describe`)."""

from typing import Annotated, Any, TypedDict

import msgspec

from robot_rl.envs.action import ActionDim
from robot_rl.envs.observation import ObservationSpec


class _Required(TypedDict):
    observation_spec: dict[str, Any]
    action_spec: list[ActionDim]


class _Robot(TypedDict, total=False):
    name: str


class _Description(_Required, total=False):
    """What is used of a description. That of a robot or of another program's data lacks some."""

    task: str
    env: str
    robot: str | list[str]
    controller: str
    input_type: str
    control_freq: Annotated[float, msgspec.Meta(gt=0)]
    horizon: int
    instructions: list[str]
    model_seed: int
    env_args: dict[str, Any]
    render: str
    randomize: list[str]
    state_layout: list[tuple[str, Annotated[int, msgspec.Meta(ge=0)]]]
    versions: dict[str, str]
    real_robot: _Robot


def check_description(environment: object) -> None:
    """Check a description that was read from a file.

    Raises:
        ValueError: if it is no description, or a value has another type.
    """
    try:
        found = msgspec.convert(environment, _Description)
    except msgspec.ValidationError as error:
        raise ValueError(f"the description of its environment does not fit: {error}") from error
    ObservationSpec.from_dict(found["observation_spec"])
