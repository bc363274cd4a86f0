"""A task of another simulator as a Gymnasium environment with the interface of `RobosuiteEnv`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from robot_rl.envs.action import ActionDim, ActionSpec, checked_action, spec_to_list
from robot_rl.envs.external.process import EnvironmentProcess, Frame, Simulator
from robot_rl.envs.instruction import INSTRUCTION, encode_instruction
from robot_rl.envs.observation import (
    IMAGE_PREFIX,
    Observation,
    ObservationSpec,
    make_observation,
    observation_space,
)
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.task_env import Step

_POSE_DELTAS: Final[ActionSpec] = (
    *(ActionDim(f"robot0_right_{axis}", "delta", "m", 0.05, "base") for axis in ("x", "y", "z")),
    *(ActionDim(f"robot0_right_{axis}", "delta", "rad", 0.5, "base") for axis in ("rx", "ry", "rz")),
    ActionDim("robot0_right_gripper_0", "gripper", "closing", 1.0, "gripper"),
)
"""Actions of a Panda with OSC_POSE, as in robosuite here."""


@dataclass(frozen=True)
class ExternalScene:
    """What a scripted expert knows of the simulation, in place of robosuite's environment."""

    values: Mapping[str, NDArray[np.float64]]
    """By the names of the environment's `Description.scene`."""
    instruction: str
    success: bool
    action_dim: int

    def _check_success(self) -> bool:
        return self.success


class ExternalEnv(gym.Env[Observation, np.ndarray]):
    """A task of another simulator. The reward is 1 at success, which ends the episode, and 0 otherwise.

    Observations, actions, `reset`, `step` and `info` are those of `RobosuiteEnv`. The simulation runs in a
    separate process, so that several are stepped at once by threads.
    """

    def __init__(self, simulator: Simulator, task: TaskConfig, *, observe_all: bool = False) -> None:
        """Start the process.

        Args:
            simulator: where the task is simulated.
            task: its configuration.
            observe_all: also observe what only a scripted expert may know.

        Raises:
            ValueError: if the configuration asks for what the simulator does not have.
            EnvironmentLost: of `process.py`, also by each method; the environment is of no more use then.
        """
        _check(simulator, task)
        for text in task.instructions:
            encode_instruction(text)
        self.process = EnvironmentProcess(
            simulator,
            {
                "suite": task.env,
                "instructions": list(task.instructions),
                "cameras": list(task.cameras),
                "size": list(task.image_size),
                "control_freq": task.control_freq,
            },
        )
        try:
            self._complete(simulator, task, observe_all)
        except BaseException:
            self.close()
            raise

    def _complete(self, simulator: Simulator, task: TaskConfig, observe_all: bool) -> None:
        told = self.process.description
        keys = list(task.state_keys) or list(told.observed)
        if missing := [key for key in keys if key not in told.observed]:
            raise ValueError(
                f"task {task.name!r}: {simulator.name} does not observe {', '.join(missing)}; "
                f"it has {', '.join(told.observed)}"
            )
        if told.action_size != len(_POSE_DELTAS):
            raise ValueError(
                f"{simulator.name} takes {told.action_size} numbers; {len(_POSE_DELTAS)} are supported"
            )
        self._scene_sizes = told.scene if observe_all else {}
        self.task = replace(
            task,
            robots=list(task.robots) or ["Panda"],
            horizon=task.horizon or told.horizon,
            state_keys=keys,
            instructions=list(task.instructions or told.instructions),
        )
        self._encoded = {text: encode_instruction(text) for text in self.task.instructions}
        self.observation_spec = ObservationSpec(
            tuple(keys),
            tuple(told.observed[key] for key in keys),
            tuple(task.cameras),
            (task.image_size[0], task.image_size[1]),
            True,
        )
        self.action_spec = _POSE_DELTAS
        self.action_space = gym.spaces.Box(-1.0, 1.0, (len(self.action_spec),), np.float32)
        self.observation_space: gym.Space = observation_space(self.observation_spec)
        self.draw_images = True
        """Whether steps draw the cameras; if not, their images are black."""
        self._frame: Frame | None = None
        self._raw: dict[str, np.ndarray] = {}
        self._scene: dict[str, NDArray[np.float64]] = {}

    @property
    def sim(self) -> ExternalScene:
        """What an expert knows of the current state; of an environment with `observe_all`, after a reset."""
        assert self._frame is not None
        return ExternalScene(self._scene, self.instruction, self._frame.success, len(self.action_spec))

    @property
    def raw(self) -> Mapping[str, np.ndarray]:
        """All raw observations of the current step, by name."""
        return self._raw

    @property
    def instruction(self) -> str:
        """The current instruction."""
        assert self._frame is not None
        return self._frame.instruction

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.draw_images = True
        if options and options.get("state") is not None:
            return self.set_state(options["state"]), {"success": False}
        number = int(self.np_random.integers(2**63)) if seed is None else seed
        return self._observed(self.process.frame("reset", seed=number, **self._wanted())), {"success": False}

    def step(self, action: np.ndarray) -> Step:
        applied = checked_action(action, len(self.action_spec))
        frame = self.process.frame("step", action=applied.tolist(), **self._wanted())
        observation = self._observed(frame)
        truncated = not frame.success and frame.steps >= self.task.horizon
        info = {"success": frame.success, "applied_action": applied}
        return observation, float(frame.success), frame.success, truncated, info

    def get_state(self) -> np.ndarray:
        """Full simulator state, float64 [K]; an episode continues from it bit-identically."""
        return self.process.state()

    def set_state(self, state: np.ndarray) -> Observation:
        """Go to a state that `get_state` returned, and return its observation.

        Raises:
            ValueError: if the state does not belong to this environment.
        """
        size = self.process.description.state_size
        if state.shape != (size,) or not np.isfinite(state).all():
            raise ValueError(f"a simulator state has {size} finite numbers here; this one is of another task")
        self.draw_images = True
        return self._observed(self.process.frame("set_state", state=state.tolist(), **self._wanted()))

    def describe(self) -> dict[str, Any]:
        """Metadata from which a dataset rebuilds this environment, as plain JSON values."""
        task, told = self.task, self.process.description
        return {
            "task": task.name,
            "env": task.env,
            "robot": task.robots[0],
            "controller": task.controller,
            "control_freq": task.control_freq,
            "horizon": task.horizon,
            "instructions": list(task.instructions),
            "scene_instructions": list(told.instructions),
            "model_seed": task.model_seed,
            "env_args": {},
            **({"render": task.render} if task.cameras else {}),
            "observation_spec": self.observation_spec.as_dict(),
            "action_spec": spec_to_list(self.action_spec),
            # The first number of a state is the index of its instruction.
            "state_layout": [["env.own", 1], ["process", told.state_size - 1]],
            "versions": dict(told.versions),
        }

    def close(self) -> None:
        self.process.close()

    def _wanted(self) -> dict[str, bool]:
        return {"images": self.draw_images, "scene": bool(self._scene_sizes)}

    def _observed(self, frame: Frame) -> Observation:
        """The observation of a frame, which becomes the current one."""
        process, task = self.process, self.task
        if frame.instruction not in self._encoded:
            raise ValueError(
                f"this state is of the instruction {frame.instruction!r:.160}, which is not among "
                "task.instructions"
            )
        raw: dict[str, np.ndarray] = {**process.vectors(frame.observed, process.description.observed)}
        size = (task.image_size[0], task.image_size[1])
        for camera, image in process.images(frame.images, task.cameras, size).items():
            raw[IMAGE_PREFIX + camera] = image
        raw[INSTRUCTION] = self._encoded[frame.instruction]
        self._frame, self._raw, self._scene = frame, raw, process.vectors(frame.scene, self._scene_sizes)
        return make_observation(raw, self.observation_spec)


def _check(simulator: Simulator, task: TaskConfig) -> None:
    """Refuse what other simulators do not have. Raises ValueError."""
    default = TaskConfig(env=task.env)
    fixed = ("controller", "input_type", "model_seed", "randomize", "env_args")
    for name in fixed:
        if getattr(task, name) != getattr(default, name):
            raise ValueError(f"task.{name}: {simulator.name} has no such tasks; leave it out")
    if list(task.robots) not in ([], ["Panda"]):
        raise ValueError(f"task.robots={task.robots}: {simulator.name}'s robot is a Panda")
    if task.cameras and task.render != "robosuite":
        raise ValueError(
            f"task.render={task.render}: {simulator.name} draws its own images; add task.render=robosuite"
        )
