"""Copies goals and state of an arm between robosuite's controller and the record of the compiled loop."""

import copy
import math
from typing import Any, Final

import mujoco
import numpy as np
from robosuite.controllers.parts.arm.osc import OperationalSpaceController
from robosuite.controllers.parts.controller import Controller
from robosuite.controllers.parts.generic.joint_pos import JointPositionController
from robosuite.controllers.parts.generic.joint_tor import JointTorqueController
from robosuite.robots.fixed_base_robot import FixedBaseRobot
from robosuite.utils import transform_utils as T
from robosuite.utils.control_utils import set_goal_position
from scipy.spatial.transform import Rotation

from robot_rl.envs.compiled import arithmetic, kernel
from robot_rl.envs.compiled.buffers import PoseBuffer, push
from robot_rl.envs.compiled.symbols import NotCompilable

_KINDS: Final = {
    OperationalSpaceController: kernel.OSC,
    JointPositionController: kernel.JOINT_POSITION,
    JointTorqueController: kernel.JOINT_TORQUE,
}
_IDENTITY: Final = np.array([0.0, 0.0, 0.0, 1.0])


class Arm:
    """Copies an arm controller's goals and gains to its record, and the state back."""

    def __init__(self, robot: FixedBaseRobot, name: str, record: np.ndarray) -> None:
        """Checks the controller and fills in the constant fields of the record.

        Args:
            robot: a robot of the environment.
            name: which of its arms ("right", "left").
            record: array of one `kernel.ARM`.

        Raises:
            NotCompilable: if the compiled loop does not support the controller or a setting of it.
        """
        self._one, record = record, record[0]
        self.robot, self.name, self.record = robot, name, record
        self.controller: Controller = robot.part_controllers[name]
        self._check()
        self._describe()
        self._check_inertia()
        sim, n = self.controller.sim, len(self.actuators)
        self._ctrl_range = sim.model._model.actuator_ctrlrange
        self._site_pos, self._sites = sim.data._data.site_xpos, sim.data._data.site_xmat
        self._site_mat = self._sites.reshape(-1, 3, 3)
        self._sensors, self._wrist = sim.data._data.sensordata, self._wrist_sensors()

        # Views of the record.
        self._low, self._high, self._rest, self._goal = (
            record[f][:n] for f in ("low", "high", "rest", "goal")
        )
        self._kp, self._kd = (record[f][: np.size(getattr(self.controller, f, ()))] for f in ("kp", "kd"))
        self._goal_pos, self._goal_ori = record["goal_pos"], record["goal_ori"]
        self._sensed = {
            "ref_pos": record["pos"],
            "ref_ori_mat": record["ori"],
            "ref_pos_vel": record["pos_vel"],
            "ref_ori_vel": record["ori_vel"],
            "J_full": record["jac"][:, :n],
            "joint_pos": record["q"][:n],
            "joint_vel": record["v"][:n],
            "mass_matrix": record["mass"][:n, :n],
        }
        self._torque = record["torque"][:n]
        self._pose_now, self._velocity = self._floats_at("pos", 12), self._floats_at("pos_vel", 6)

    def set_goal(self, action: np.ndarray) -> None:
        """Sets the goal of a control step, between mj_step1 and mj_step2 of its first substep.

        Args:
            action: this arm's part of the action, finite, [control_dim].
        """
        controller, kind = self.controller, type(self.controller)
        push(self.robot.recent_ee_forcetorques[self.name], self._sensors[self._wrist])
        if getattr(controller, "impedance_mode", "fixed") != "fixed":
            action = self._take_gains(action)
        if kind is JointTorqueController:
            low, high = controller.torque_limits
            controller.goal_torque = np.clip(scaled(controller, action), low, high)
            controller.current_torque = np.array(controller.goal_torque)
        elif kind is OperationalSpaceController:
            if self._move(action):
                return
            self._set_osc_goal(action)
        elif controller.input_type == "delta":
            here = controller.sim.data._data.qpos[controller.qpos_index]
            start = here if controller.new_update else controller.joint_pos
            move = scaled(controller, action)
            controller.goal_qpos = set_goal_position(move, start, controller.position_limits)
        else:
            controller.goal_qpos = action.copy()
        self.load_goal()

    def pose(self) -> tuple[np.ndarray, np.ndarray]:
        """Pose of the end effector in the frame of the goals: position [3], orientation [3, 3]."""
        pos, ori = self._site_pos[self.site], self._site_mat[self.site]
        if self.record["in_base"]:
            return self._in_base(pos, ori)
        return pos.copy(), ori.copy()

    def set_pose_goal(self, pos: np.ndarray, ori: np.ndarray) -> None:
        """Sets the goal of an operational-space controller between control steps.

        Args:
            pos, ori: [3] and [3, 3] in the frame of `pose`.
        """
        controller = self.controller
        controller.goal_pos, controller.goal_ori = np.array(pos), np.array(ori)
        # From now on the loop uses the simulation, not what was sensed before a reset.
        controller.new_update = True

    def load_goal(self) -> None:
        """Copies goals, gains and limits to the record; they are public attributes and may have changed."""
        controller, kind = self.controller, type(self.controller)
        self._low[:], self._high[:] = self._ctrl_range[self.actuators].T
        # After a reset robosuite computes its first torques from what the controller sensed when
        # it was created, even if something has been moved since.
        self.record["sensed"] = not controller.new_update
        if not controller.new_update:
            for name, value in self._sensed.items():
                value[:] = getattr(controller, name)
        if kind is JointTorqueController:
            self._goal[:] = controller.goal_torque
            return
        self._kp[:], self._kd[:] = controller.kp, controller.kd
        if kind is JointPositionController:
            self._goal[:] = controller.goal_qpos
        else:
            self._rest[:] = controller.initial_joint
            self._goal_pos[:], self._goal_ori[:] = controller.goal_pos, controller.goal_ori

    def _take_gains(self, action: np.ndarray) -> np.ndarray:
        """Sets the gains from the front of the action and returns the rest, the goal."""
        controller, size = self.controller, self._kp.size
        ratio, action = np.split(action, [size if controller.impedance_mode == "variable" else 0])
        kp, goal = np.split(action, [size])
        controller.kp = np.clip(kp, controller.kp_min, controller.kp_max)
        controller.kd = 2 * np.sqrt(controller.kp)
        if ratio.size:
            limits = controller.damping_ratio_min, controller.damping_ratio_max
            controller.kd = controller.kd * np.clip(ratio, *limits)
        return goal

    def _move(self, action: np.ndarray) -> bool:
        """Does `_set_osc_goal` and `load_goal` in the usual case; else does nothing and returns False."""
        controller = self.controller
        if (
            controller.input_type != "delta"
            or controller._goal_update_mode != "achieved"
            or not controller.new_update
        ):
            return False
        step = scaled(controller, action)
        angle = sine = cosine = 0.0
        if controller.use_ori:
            turn = step[3:6]
            angle = math.sqrt(turn.dot(turn))
            sine, cosine = np.sin(angle / 2.0), np.cos(angle / 2.0)
        goal = np.empty((4, 3))
        arithmetic.move(
            *(self._one, self._site_pos, self._sites, self._ctrl_range, step, angle, sine, cosine),
            *(floats(controller.kp), floats(controller.kd), floats(controller.initial_joint), goal),
        )
        controller.goal_pos, controller.goal_ori = goal[0], goal[1:]
        return True

    def _set_osc_goal(self, action: np.ndarray) -> None:
        """`OperationalSpaceController.set_goal` by the same products, whose last bits matter."""
        controller = self.controller
        pos, ori = self._site_pos[self.site], self._site_mat[self.site]
        if not controller.new_update:
            pos, ori = controller.ref_pos, controller.ref_ori_mat
        if controller._goal_update_mode == "desired":
            pos, ori = controller.goal_pos, controller.goal_ori
        elif controller.input_ref_frame == "base":
            pos, ori = self._in_base(pos, ori)

        turn = np.zeros(3)
        if controller.input_type == "delta":
            move = scaled(controller, action)
            turn = move[3:6] if controller.use_ori else turn
            controller.goal_pos = pos + move[:3]
        else:
            controller.goal_pos = action[:3].copy()
        if controller.input_type == "absolute" and controller.use_ori:
            controller.goal_ori = Rotation.from_rotvec(action[3:6]).as_matrix()
        else:
            controller.goal_ori = np.dot(T.quat2mat(_quaternion(turn)), ori)

    def _in_base(self, pos: np.ndarray, ori: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Converts a pose in the world, position [3] and orientation [3, 3], to the arm's base frame."""
        pose = arithmetic.in_base(self._one, self._site_pos, self._sites, pos, ori)
        return pose[:3, 3], pose[:3, :3]

    def push_history(self) -> None:
        """Pushes the end effector's pose, velocity and acceleration of the first substep.

        robosuite smooths the acceleration over a ring buffer without unrolling it; the sum of the
        buffer's differences is its last row minus its first.
        """
        robot, arm = self.robot, self.name
        PoseBuffer.push_matrix(robot.recent_ee_pose[arm], self._pose_now.copy())
        velocity = self._velocity.copy()
        push(robot.recent_ee_vel[arm], velocity)
        ring, acceleration = robot.recent_ee_vel_buffer[arm], robot.recent_ee_acc[arm]
        ring.push(velocity)
        change = robot.control_freq * (ring.buf[-1] - ring.buf[0])
        push(acceleration, (acceleration.current + change) / 10.0)

    def write_back(self) -> None:
        """Updates the controller object to the state that robosuite leaves after the last substep."""
        controller, sensed = self.controller, self._sensed
        for name in ("ref_pos", "ref_ori_mat", "ref_pos_vel", "ref_ori_vel", "J_full"):
            getattr(controller, name)[:] = sensed[name]
        controller.J_pos[:], controller.J_ori[:] = sensed["J_full"][:3], sensed["J_full"][3:]
        for name in ("joint_pos", "joint_vel", "mass_matrix"):
            setattr(controller, name, sensed[name].copy())
        controller.torques = self._torque.copy()
        controller.update_origin(self._site_pos[self.base].copy(), self._site_mat[self.base].copy())
        controller.new_update = True

    def reference_torques(self) -> np.ndarray:
        """Robosuite's own torques for the current goal and simulation, [joints]; changes nothing."""
        controller = copy.copy(self.controller)
        for name, value in vars(self.controller).items():
            if isinstance(value, np.ndarray):
                setattr(controller, name, value.copy())
        base = self._site_pos[self.base].copy(), self._site_mat[self.base].copy()
        controller.update_origin(*base)
        return np.asarray(controller.run_controller())

    # ------------------------------------------------------------------------------------------

    def _floats_at(self, field: str, count: int) -> np.ndarray:
        """A view of `count` numbers of the record, starting at a field."""
        fields: Any = kernel.ARM.fields
        return np.ndarray(count, buffer=self._one.view(np.uint8), offset=fields[field][1])

    def _check(self) -> None:
        controller, where = self.controller, f"{self.robot.name}'s {self.name} arm"
        if type(controller) not in _KINDS:
            raise NotCompilable(f"{where} has a {type(controller).__name__}")
        for interpolator in ("interpolator", "interpolator_pos", "interpolator_ori"):
            if getattr(controller, interpolator, None) is not None:
                raise NotCompilable(f"{where} interpolates its goals")
        if not controller.lite_physics:
            raise NotCompilable(f"{where} has lite_physics=False")
        if controller.num_ref_sites != 1:
            raise NotCompilable(f"{where} follows {controller.num_ref_sites} sites")
        if type(controller) is OperationalSpaceController:
            limits = controller.position_limits, controller.orientation_limits
            if any(limit is not None and np.any(limit) for limit in limits):
                raise NotCompilable(f"{where} limits its goals")

    def _describe(self) -> None:
        controller, record, where = self.controller, self.record, f"{self.robot.name}'s {self.name} arm"
        sim, n = controller.sim, len(controller.qpos_index)
        self.actuators = np.array(self.robot._ref_actuators_indexes_dict[self.name])
        if not len(self.actuators) == len(controller.qvel_index) == n <= kernel.MAX_JOINTS:
            raise NotCompilable(f"{where} has {n} joints with {len(self.actuators)} actuators")
        self.site = sim.model.site_name2id(controller.ref_name)
        self.base = sim.model.site_name2id(f"{controller.naming_prefix}{controller.part_name}_center")
        model = sim.model._model
        record["kind"], record["n"] = _KINDS[type(controller)], n
        record["site"], record["base"] = self.site, self.base
        record["in_base"] = getattr(controller, "input_ref_frame", "world") == "base"
        record["moving"] = model.body_weldid[model.site_bodyid[self.base]] != 0
        record["qpos"][:n] = controller.qpos_index
        record["dof"][:n] = controller.qvel_index
        record["actuator"][:n] = self.actuators
        record["uncoupled"] = getattr(controller, "uncoupling", False)
        record["compensated"] = getattr(controller, "use_torque_compensation", True)

    def _check_inertia(self) -> None:
        """Fills in the addresses of the arm's mass matrix in qM, and compares the result with MuJoCo's."""
        model, data = self.controller.sim.model._model, self.controller.sim.data._data
        addresses = np.full((model.nv, model.nv), -1)
        for i in range(model.nv):
            j, address = i, int(model.dof_Madr[i])
            while j >= 0:
                addresses[i, j] = addresses[j, i] = address
                j, address = int(model.dof_parentid[j]), address + 1
        block = np.ix_(self.controller.qvel_index, self.controller.qvel_index)
        dense = np.empty((model.nv, model.nv))
        mujoco.mj_fullM(model, dense, data.qM)
        if not np.array_equal(np.where(addresses >= 0, data.qM[addresses], 0.0)[block], dense[block]):
            raise NotCompilable(f"MuJoCo {mujoco.__version__} has another layout of the inertia matrix")
        self.record["inertia"][: len(block[0]), : len(block[0])] = addresses[block]

    def _wrist_sensors(self) -> np.ndarray:
        """Indices into mjData.sensordata of the wrist's force and torque, [6]."""
        model, names = self.controller.sim.model, self.robot.gripper[self.name].important_sensors
        sensors = [model.sensor_name2id(names[key]) for key in ("force_ee", "torque_ee")]
        starts, sizes = model._model.sensor_adr[sensors], model._model.sensor_dim[sensors]
        return np.concatenate([start + np.arange(size) for start, size in zip(starts, sizes, strict=True)])


def scaled(controller: Controller, action: np.ndarray) -> np.ndarray:
    """`controller.scale_action(action)`: clips to the input range and maps to the output range."""
    if controller.action_scale is None:
        return controller.scale_action(action)
    out: np.ndarray = arithmetic.scale(
        action,
        floats(controller.input_min),
        floats(controller.input_max),
        controller.action_input_transform,
        controller.action_scale,
        controller.action_output_transform,
    )
    return out if out.size else controller.scale_action(action)


def floats(values: np.ndarray) -> np.ndarray:
    """The array as C-ordered float64, without a copy if it is that already."""
    return np.ascontiguousarray(values, np.float64)


def _quaternion(turn: np.ndarray) -> np.ndarray:
    """`T.axisangle2quat`, xyzw, bit-identical."""
    angle = math.sqrt(turn.dot(turn))
    if math.isclose(angle, 0.0):
        return _IDENTITY
    quaternion = np.empty(4)
    quaternion[:3] = turn / angle * np.sin(angle / 2.0)
    quaternion[3] = np.cos(angle / 2.0)
    return quaternion
