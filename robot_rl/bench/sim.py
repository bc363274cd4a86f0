"""Speed of the simulation: unmodified robosuite, ours, the physics alone, images, and several threads."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np
import robosuite

from robot_rl.assets import asset_path
from robot_rl.bench.timing import Action, milliseconds, take_turns
from robot_rl.cli.compose import load_group
from robot_rl.envs.compiled import compile_control
from robot_rl.envs.renderer import EnvCameraRenderer
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.vector import ThreadVectorEnv
from robot_rl.errors import nearest
from robot_rl.factory import make_robosuite_env

_ROUND = 200
"""Control steps between resets."""
_BLOCK = 10
"""Control steps in one turn, enough to fill the processor's caches with the turn's own data."""
_STATE = mujoco.mjtState.mjSTATE_INTEGRATION
CAMERA = "agentview"
CAMERAS = (CAMERA, "robot0_eye_in_hand")
SIZE = 84
"""Height and width of images in pixels."""
CHUNK = 4
"""Control steps between two decisions of a policy of chunks, in the steps with images."""
_IMAGE_BLOCK = 3
"""Images in one turn: the first of a turn includes the switch of the GL context."""
_THREADS_TASK = "lift"
_PER_THREAD = 8
"""Environments per thread with the largest number of threads."""
_THREADS_STEPS = 10
"""Steps from one set of states, far fewer than the task's horizon."""


@dataclass(frozen=True)
class TaskSpeed:
    """Measured speed of one task; times are medians in ms."""

    stock_ms: float
    """A control step of unmodified robosuite."""
    ours_ms: float
    """A control step with our control loop and all of robosuite's observations."""
    asked_ms: float
    """A control step with only the observations of a policy."""
    physics_ms: float
    """MuJoCo alone: the substeps of a control step, of the same model from the same states."""
    speedup: float
    """`stock_ms / ours_ms`."""
    limit_fraction: float
    """`physics_ms / ours_ms`: 1 if only physics took time."""
    reset_stock_ms: float
    """A reset that rebuilds the model, robosuite's default."""
    reset_ours_ms: float
    """A reset that keeps the model."""
    render_stock_ms: float | None
    """An image by robosuite's camera observation; None where nothing can be rendered."""
    render_ours_ms: float | None
    """An image by our renderer."""
    seeing_stock_ms: float | None
    """A control step of unmodified robosuite with two cameras; None where nothing can be rendered."""
    seeing_ours_ms: float | None
    """A control step of ours that draws two cameras."""
    seeing_decisions_ms: float | None
    """A control step of ours, the mean over a chunk, if only images are drawn that a decision reads."""
    equal: bool
    """Whether all had bit-identical states at the end of every round."""
    max_deviation: float
    """Largest difference of a number of the full state at the end of a round."""
    steps: int
    """Control steps of each."""
    processor_share: float
    """Fraction of the time in which this process had the processor; well below 1, others were running."""


def check_tasks(tasks: Sequence[str]) -> None:
    """Check that robosuite has these environments.

    Raises:
        ValueError: if one is unknown; names the nearest.
    """
    names = {name.lower(): name for name in sorted(robosuite.ALL_ENVIRONMENTS)}
    for task in tasks:
        if task not in names.values():
            spelled = nearest(task.lower(), names)
            hint = f"did you mean {names[spelled]}? " if spelled else ""
            raise ValueError(f"tasks={task}: {hint}robosuite has {', '.join(names.values())}")


def measure_task(task: str, seconds: float, seed: int, *, images: bool) -> TaskSpeed:
    """Measure one of robosuite's environments.

    Args:
        task: name of the environment.
        seconds: approximate duration in s, mostly of steps, partly of resets and images.
        seed: seed of states and actions.
        images: whether to measure rendering, which needs a working OpenGL.
    """
    comparison = _Comparison(task, seed)
    comparison.run_for((0.6 if images else 0.85) * seconds)
    stock, ours = comparison.envs["stock"], comparison.envs["ours"]
    resets = _measure_resets(stock, ours, 0.15 * seconds)
    drawn: dict[str, float] = {}
    if images:
        cameras = {"camera_names": list(CAMERAS), "camera_heights": SIZE, "camera_widths": SIZE}
        watched = _make(task, seed, has_offscreen_renderer=True, use_camera_obs=True, **cameras)
        drawn = measure_images(watched, ours, 0.1 * seconds)
        drawn |= measure_seeing(watched, task, 0.15 * seconds, seed)
        watched.close()
    comparison.close()
    step = {name: median(times) for name, times in comparison.times.items()}
    return TaskSpeed(
        stock_ms=step["stock"],
        ours_ms=step["ours"],
        asked_ms=step["asked"],
        physics_ms=step["physics"],
        speedup=step["stock"] / step["ours"],
        limit_fraction=step["physics"] / step["ours"],
        reset_stock_ms=resets["stock"],
        reset_ours_ms=resets["ours"],
        render_stock_ms=drawn.get("render_stock_ms"),
        render_ours_ms=drawn.get("render_ours_ms"),
        seeing_stock_ms=drawn.get("seeing_stock_ms"),
        seeing_ours_ms=drawn.get("seeing_ours_ms"),
        seeing_decisions_ms=drawn.get("seeing_decisions_ms"),
        equal=comparison.deviation == 0,
        max_deviation=comparison.deviation,
        steps=len(comparison.times["stock"]),
        processor_share=comparison.processor_share,
    )


class _Comparison:
    """Identical environments that take the same steps from the same states, in turns."""

    def __init__(self, task: str, seed: int) -> None:
        self.envs = {name: _make(task, seed) for name in ("stock", "ours", "asked")}
        for env in self.envs.values():
            env.reset()
        ours = self.envs["ours"]
        compile_control(ours)
        compile_control(self.envs["asked"]).observe_only(_asked(task, ours))
        self._model = ours.sim.model._model
        alone = mujoco.MjData(self._model)
        substeps = int(ours.control_timestep / ours.model_timestep)
        self._alone, self._physics = alone, partial(mujoco.mj_step, self._model, alone, nstep=substeps)
        self._rng = np.random.default_rng(seed)
        self.times: dict[str, list[float]] = {name: [] for name in (*self.envs, "physics")}
        self.deviation = 0.0
        self.processor_share = 1.0
        # Warm-up: first use compiles and fills caches.
        self._begin()
        self._block()
        self.times = {name: [] for name in self.times}

    def run_for(self, seconds: float) -> None:
        """Measure for `seconds`."""
        start, used = time.monotonic(), time.thread_time()
        end = start + seconds
        while time.monotonic() < end:
            self._begin()
            for _ in range(_ROUND // _BLOCK):
                self._block()
                if time.monotonic() >= end:
                    break
            self._compare()
        self.processor_share = (time.thread_time() - used) / (time.monotonic() - start)

    def close(self) -> None:
        for env in self.envs.values():
            env.close()

    def _begin(self) -> None:
        """Reset all to the same new state."""
        seed = self._rng.integers(2**32)
        for env in self.envs.values():
            env.rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state
            env.reset()

    def _block(self) -> None:
        """A turn of each candidate with the same actions; physics starts from the states of `ours`."""
        actions = self._rng.uniform(-1, 1, (_BLOCK, self.envs["ours"].action_dim))
        states: list[np.ndarray] = []
        for name, env in self.envs.items():
            for action in actions:
                if name == "ours":
                    states.append(self._state(env))
                self.times[name].append(milliseconds(partial(env.step, action)))
        for state in states:
            mujoco.mj_setState(self._model, self._alone, state, _STATE)
            self.times["physics"].append(milliseconds(self._physics))

    def _state(self, env: Any) -> np.ndarray:
        """The full state from which MuJoCo's step starts: positions, velocities, controls, warm start."""
        state = np.empty(mujoco.mj_stateSize(self._model, _STATE))
        mujoco.mj_getState(self._model, env.sim.data._data, state, _STATE)
        return state

    def _compare(self) -> None:
        expected = self._state(self.envs["stock"])
        for name in ("ours", "asked"):
            difference = np.abs(self._state(self.envs[name]) - expected).max()
            self.deviation = max(self.deviation, float(difference))


def _measure_resets(stock: Any, ours: Any, seconds: float) -> dict[str, float]:
    stock.hard_reset = True  # robosuite's default; off until here to keep the models equal
    return take_turns({"stock": stock.reset, "ours": ours.reset}, seconds)


def _make(task: str, seed: int, **options: Any) -> Any:
    """An unmodified robosuite environment; those of the same task and seed are equal."""
    defaults = {"has_offscreen_renderer": False, "use_camera_obs": False}
    return robosuite.make(
        task,
        robots=["Panda"] * (2 if task.startswith("TwoArm") else 1),
        has_renderer=False,
        ignore_done=True,
        reward_shaping=False,
        hard_reset=False,
        seed=seed,
        **defaults | options,
    )


def _asked(task: str, env: Any) -> list[str]:
    """Observables of a policy: those of our task, otherwise of grippers and objects."""
    for path in sorted(asset_path("configs", "task").glob("*.yaml")):
        ours = load_group("task", path.stem, TaskConfig)
        if ours.env == task:
            return ours.state_keys
    hand = ("eef_pos", "eef_quat", "gripper_qpos")
    keys = [f"robot{i}_{key}" for i in range(len(env.robots)) for key in hand]
    # A peg instead of a gripper has no qpos.
    return [*(key for key in keys if key in env._observables), "object-state"]


def measure_images(stock: Any, ours: Any, seconds: float) -> dict[str, float]:
    """Rendering time of one image in ms: `render_stock_ms` and `render_ours_ms`.

    Args:
        stock: a robosuite environment that observes the camera.
        ours: another environment of the same task.
        seconds: approximate duration of the measurement in s.
    """
    with _renderer(ours) as renderer:
        draw = {"render_stock_ms": _stock_image(stock), "render_ours_ms": renderer.frame}
        # robosuite assumes that its context is current.
        before = {"render_stock_ms": stock.sim._render_context_offscreen.gl_ctx.make_current}
        take_turns(draw, 0.0, before=before, least=1)  # warm-up: first use initialises caches
        return take_turns(draw, seconds, before=before, block=_IMAGE_BLOCK)


def measure_seeing(stock: Any, task: str, seconds: float, seed: int) -> dict[str, float]:
    """Time of a control step with two cameras in ms, by the names of `TaskSpeed`.

    Args:
        stock: a robosuite environment that observes both cameras.
        task: name of the environment.
        seconds: approximate duration of the measurement in s.
        seed: seed of states and actions.
    """
    ours = RobosuiteEnv(TaskConfig(env=task, cameras=list(CAMERAS), image_size=[SIZE, SIZE]))
    shape = CHUNK, len(ours.action_spec)
    actions = np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)

    def steps(env: Any, *, decisions_only: bool = False) -> None:
        for i, action in enumerate(actions):
            ours.draw_images = not decisions_only or i == CHUNK - 1
            env.step(action)

    candidates = {
        "seeing_stock_ms": partial(steps, stock),
        "seeing_ours_ms": partial(steps, ours),
        "seeing_decisions_ms": partial(steps, ours, decisions_only=True),
    }
    before: dict[str, Action] = {name: partial(ours.reset, seed=seed) for name in candidates}
    # robosuite assumes that its context is current, also where a reset makes observations.
    before["seeing_stock_ms"] = partial(_reset_watched, stock)
    take_turns(candidates, 0.0, before=before, least=1)
    times = take_turns(candidates, seconds, before=before)
    ours.close()
    return {name: value / CHUNK for name, value in times.items()}


def _reset_watched(stock: Any) -> None:
    stock.sim._render_context_offscreen.gl_ctx.make_current()
    stock.reset()


def _stock_image(env: Any) -> Callable[[], np.ndarray]:
    """The sensor of robosuite's camera observation."""
    sensor = env._observables[f"{CAMERA}_image"]._sensor
    return lambda: sensor(env._obs_cache)


def _renderer(env: Any) -> EnvCameraRenderer:
    # It needs an environment of ours, for the name of its task.
    ours: Any = SimpleNamespace(sim=env, task=SimpleNamespace(name=type(env).__name__))
    return EnvCameraRenderer(ours, CAMERA, SIZE, SIZE, quick=True)


def thread_counts(cores: int) -> list[int]:
    """1, 2 and its doubles up to the number of cores."""
    counts = [1, 2]
    while 2 * counts[-1] <= cores:
        counts.append(2 * counts[-1])
    return counts


def measure_threads(counts: list[int], seconds: float, seed: int) -> dict[int, float]:
    """Environment steps per second with each number of threads, the best of many rounds.

    The same environments take the same steps with every number of threads, in turns. With all cores in use,
    other processes slow a round down, and the median would measure that.
    """
    envs = [make_robosuite_env(_THREADS_TASK) for _ in range(_PER_THREAD * max(counts))]
    vectors = {n: ThreadVectorEnv([_returning(env) for env in envs], threads=n) for n in counts}
    vectors[1].reset(seed=seed)
    states = vectors[1].get_states()
    shape = _THREADS_STEPS, len(envs), len(envs[0].action_spec)
    actions = np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)
    rates: dict[int, list[float]] = {n: [] for n in counts}
    end = time.monotonic() + seconds
    while len(rates[1]) < 3 or time.monotonic() < end:
        for n, vector in vectors.items():
            vector.set_states(states)
            rates[n].append(_rate(vector, actions))
    for vector in vectors.values():
        vector.close()
    return {n: max(values) for n, values in rates.items()}


def _returning(env: RobosuiteEnv) -> Callable[[], RobosuiteEnv]:
    return lambda: env


def _rate(vector: ThreadVectorEnv, actions: np.ndarray) -> float:
    """Environment steps per second over the actions [T, N, A], or until an episode ends."""
    steps = 0
    start = time.perf_counter()
    for action in actions:
        _, _, terminated, truncated, _ = vector.step(action)
        steps += vector.num_envs
        if (terminated | truncated).any():
            break
    return steps / (time.perf_counter() - start)
