"""A robosuite task as a Gymnasium environment with a sparse reward and exact state."""

import warnings
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import robosuite
from robosuite.utils.observables import Observable, sensor

from robot_rl.envs import simstate
from robot_rl.envs.action import checked_action, spec_to_list
from robot_rl.envs.appearance import RandomAppearance, check_appearance, describe_appearance
from robot_rl.envs.compiled import CompiledControl, NotCompilable, compile_control
from robot_rl.envs.disturbances import Scene
from robot_rl.envs.instruction import INSTRUCTION, encode_instruction
from robot_rl.envs.language_scenes import LanguageScene
from robot_rl.envs.observation import (
    IMAGE_PREFIX,
    Observation,
    ObservationSpec,
    make_observation,
    observation_space,
)
from robot_rl.envs.playback_start import begin_as_played_back
from robot_rl.envs.renderer import EnvCameraRenderer
from robot_rl.envs.robosuite_actions import PoseActions, action_spec
from robot_rl.envs.robosuite_task import make_sim
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.task_env import Step


class RobosuiteEnv(gym.Env[Observation, np.ndarray]):
    """A robosuite task. The reward is 1 at success, which ends the episode, and 0 otherwise.

    `task` is the configuration with all defaults of the environment filled in.
    Observations are frames of `make_observation` (no time axis): `state` float32 [S],
    `images.<camera>` uint8 [H, W, 3] and, of a task with instructions, `instruction` uint8 [L]. Actions are
    float32 [A] in [-1, 1]. `reset(seed=)` fixes the whole initial state, also the instruction;
    `reset(options={"state": …})` starts from a saved state, and `reset(options={"playback_start": True})` in
    a way that robomimic can play the episode back exactly (`robot_rl.envs.playback_start`). `info` holds
    `success` and `applied_action`, the action that the controllers got.
    """

    def __init__(self, task: TaskConfig, *, observe_all: bool = False) -> None:
        """Build the task.

        Args:
            task: its configuration.
            observe_all: also compute raw observations that are not part of the state.

        Raises:
            ValueError: if the configuration is not valid; see also `make_sim`.
        """
        check_appearance(task)
        self._sim, self.task = make_sim(task)
        task = self.task
        observed = self._sim.observation_names
        missing = [key for key in task.state_keys if key not in observed]
        if missing:
            raise ValueError(
                f"task {task.name!r}: robosuite's {task.env} does not observe {', '.join(missing)}; "
                f"it has {', '.join(sorted(observed))}"
            )
        self._encoded = {text: encode_instruction(text) for text in task.instructions}
        if isinstance(self._sim, LanguageScene):
            self._sim.goal = self._sim.INSTRUCTIONS.index(task.instructions[0])
        self.draw_images = True
        """Whether steps draw the cameras of `task.render=quick`; if not, their images are black."""
        self._cameras = self._add_cameras()
        raw = self._read(self._sim.reset())
        self.observation_spec = ObservationSpec(
            tuple(task.state_keys),
            tuple(int(np.atleast_1d(raw[key]).size) for key in task.state_keys),
            tuple(task.cameras),
            (task.image_size[0], task.image_size[1]),
            bool(task.instructions),
        )
        self.action_spec = action_spec(self._sim)
        self.poses = PoseActions(self._sim) if task.input_type == "absolute" else None
        """Converts actions to robosuite's and back if they are absolute poses; None if both are the same."""
        self.action_space = gym.spaces.Box(-1.0, 1.0, (len(self.action_spec),), np.float32)
        self.observation_space: gym.Space = observation_space(self.observation_spec)
        self._raw = raw
        self._appearance = self._random_appearance()
        self.control = self._compile(observe_all)
        """The compiled control loop; None if robosuite's own is used."""

    def _add_cameras(self) -> ExitStack:
        """Renderers of the observed cameras, unless robosuite renders them; closed with the environment."""
        with ExitStack() as stack:
            for camera in self.task.cameras if self.task.render == "quick" else ():
                stack.enter_context(self._observe_camera(camera))
            return stack.pop_all()

    def _random_appearance(self) -> RandomAppearance | None:
        if not self.task.randomize:
            return None
        sim = self._sim.sim
        scene = Scene(sim.model._model, sim.data._data, self.task.cameras)
        return RandomAppearance(self.task, scene, simstate.capture(self._sim).size)

    def _observe_camera(self, camera: str) -> EnvCameraRenderer:
        """Add the observable `<camera>_image`, which samples when robosuite's own would."""
        renderer = EnvCameraRenderer(self, camera, *self.task.image_size, quick=True)

        @sensor(modality="image")
        def image(cache: Mapping[str, Any]) -> np.ndarray:
            if not self.draw_images:
                return np.zeros((*self.task.image_size, 3), np.uint8)
            return renderer.frame()[::-1]  # the lowest row first, as in OpenGL

        self._sim.add_observable(Observable(f"{camera}_image", image, sampling_rate=self.task.control_freq))
        return renderer

    def _compile(self, observe_all: bool) -> CompiledControl | None:
        try:
            control = compile_control(self._sim)
        except NotCompilable as reason:
            warnings.warn(
                f"task {self.task.name!r} runs on robosuite's own control loop, which is slower: {reason}",
                stacklevel=3,
            )
            return None
        if not observe_all:
            images = [f"{camera}_image" for camera in self.task.cameras]
            control.observe_only([*self.task.state_keys, *images])
        return control

    @property
    def sim(self) -> Any:
        """robosuite's environment object, with privileged state; for experts and rendering."""
        return self._sim

    @property
    def raw(self) -> Mapping[str, np.ndarray]:
        """All raw observations of the current step, by robosuite's names."""
        return self._raw

    def sense(self) -> Mapping[str, np.ndarray]:
        """Compute the raw observations of the current state, at any moment of a control step."""
        self._make_context_current()
        self._raw = self._read(self._sim._get_observations(force_update=True))
        return self._raw

    @property
    def instruction(self) -> str:
        """The current instruction; "" if the task has none."""
        if isinstance(self._sim, LanguageScene):
            return self._sim.instruction
        return next(iter(self._encoded), "")

    def succeeds(self) -> bool:
        """Whether the task's own check reports success in the current state."""
        return bool(self._sim._check_success())

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        state = (options or {}).get("state")
        # Images before a given state is set are not looked at.
        self.draw_images = state is None
        if seed is not None:
            # All of robosuite's samplers share this generator.
            self._sim.rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state
        self._make_context_current()
        if self._appearance:
            self._appearance.draw(seed, self._sim.rng)
        raw = self._sim.reset()
        if isinstance(self._sim, LanguageScene):
            drawn = self._sim.rng.integers(len(self.task.instructions))
            self._sim.goal = self._sim.INSTRUCTIONS.index(self.task.instructions[drawn])
        if options and options.get("playback_start"):
            begin_as_played_back(self._sim)
            raw = self._sim._get_observations(force_update=True)
        self._raw = self._read(raw)
        if state is not None:
            self.set_state(state)
        return make_observation(self._raw, self.observation_spec), {"success": False}

    def step(self, action: np.ndarray) -> Step:
        applied = self._applied(action)
        return self._stepped(applied, *self._sim.step(self._commands(applied)))

    def stepping(self, action: np.ndarray) -> Generator[None, None, Step]:
        """`step` as a generator for `WorkerPool.drive`; needs a compiled control loop."""
        assert self.control is not None
        applied = self._applied(action)
        return self._stepped(applied, *(yield from self.control.stepping(self._commands(applied))))

    def _applied(self, action: np.ndarray) -> np.ndarray:
        applied = checked_action(action, len(self.action_spec))
        self._make_context_current()
        return applied

    def _commands(self, applied: np.ndarray) -> np.ndarray:
        return self.poses.commands(applied) if self.poses else applied

    def _stepped(self, applied: np.ndarray, raw: Mapping[str, Any], reward: float, *_: Any) -> Step:
        self._raw = self._read(raw)
        success = bool(reward)
        truncated = not success and self._sim.timestep >= self.task.horizon
        info = {"success": success, "applied_action": applied}
        return make_observation(self._raw, self.observation_spec), float(success), success, truncated, info

    def get_state(self) -> np.ndarray:
        """Full simulator state, float64 [K]; an episode continues from it bit-identically."""
        state = simstate.capture(self._sim)
        return self._appearance.save(state) if self._appearance else state

    def set_state(self, state: np.ndarray) -> Observation:
        """Go to a state that `get_state` returned, and return its observation.

        Raises:
            ValueError: if the state does not belong to this environment.
        """
        self.draw_images = True
        self._make_context_current()
        state, before = np.asarray(state), simstate.capture(self._sim)
        simstate.restore(self._sim, self._appearance.restore(state) if self._appearance else state)
        if (asked := self.instruction) not in self._encoded and self._encoded:
            simstate.restore(self._sim, before)
            raise ValueError(
                f"this state is of the instruction {asked!r}, which is not among task.instructions"
            )
        self._raw = self._read(self._sim._get_observations())
        return make_observation(self._raw, self.observation_spec)

    def image(self, camera: str, height: int, width: int) -> np.ndarray:
        """Current image of a camera, uint8 [H, W, 3], multisampled; use `EnvCameraRenderer` for many."""
        with EnvCameraRenderer(self, camera, height, width) as renderer:
            return renderer.frame()

    def describe(self) -> dict[str, Any]:
        """Metadata from which a dataset rebuilds this environment, as plain JSON values."""
        task = self.task
        return {
            "task": task.name,
            "env": task.env,
            # A string for one robot, for datasets from before there could be two.
            "robot": task.robots[0] if len(task.robots) == 1 else list(task.robots),
            "controller": task.controller,
            **({"input_type": task.input_type} if task.input_type != "delta" else {}),
            "control_freq": task.control_freq,
            "horizon": task.horizon,
            **({"instructions": list(task.instructions)} if task.instructions else {}),
            "model_seed": task.model_seed,
            "env_args": dict(task.env_args),
            # Without cameras nothing is rendered.
            **({"render": task.render} if task.cameras else {}),
            "observation_spec": self.observation_spec.as_dict(),
            "action_spec": spec_to_list(self.action_spec),
            **describe_appearance(task, [list(piece) for piece in simstate.layout(self._sim)]),
            "versions": {"robosuite": robosuite.__version__, "mujoco": mujoco.__version__},
        }

    def close(self) -> None:
        self._cameras.close()
        if self._sim.sim is not None and self._sim.sim._render_context_offscreen is not None:
            # Else Python may free it while another context is current, and so free the other's objects.
            self._make_context_current()
            self._sim.sim._render_context_offscreen.con.free()
        self._sim.close()

    def _make_context_current(self) -> None:
        """Make robosuite's GL context current if it has one: robosuite assumes that it is.

        With another context current, images are slightly wrong.
        """
        context = self._sim.sim._render_context_offscreen
        if context is not None:
            context.gl_ctx.make_current()

    def _read(self, raw: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """robosuite's observations, with upright images under this program's names."""
        out = {key: np.asarray(value) for key, value in raw.items() if not key.endswith("-state")}
        for camera in self.task.cameras:
            out[IMAGE_PREFIX + camera] = np.ascontiguousarray(out.pop(f"{camera}_image")[::-1])
        if self._encoded:
            out[INSTRUCTION] = self._encoded[self.instruction]
        return out
