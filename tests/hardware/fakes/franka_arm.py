"""A Franka arm as a process: franky-sim's physics and protocol, with what a test must be able to do to it.

Run as a program it prints its address and then answers each line on its stdin with one of JSON, its state:
`state`, `reset`, `reflex <name>`, `user_stop on|off`, `silent on|off`, `block <width>|off`. It ends with its
stdin.

What it adds to franky-sim, which by itself never refuses or stops anything:
- Reflexes and the user stop: they abort the motion, and only a recovery clears a reflex.
- The arm's own answer to a lost client: after `PATIENCE` states in a row that no command answered it stops
  with `communication_constraints_violation`, as a real one does after 20.
- A hand that aborts its command when it is told to stop, and that something may block.
- Time waits for the client: during a motion the next step comes when the last state was answered, or after
  `ANSWER`. It also waits for the test, whose process has a lower priority than libfranka's thread in it: it
  is at most `LEAD` ahead of the last line on stdin, unless none comes for `QUIET`. A real arm does not wait;
  a machine that is busy with other things would starve one that does not.
"""

import json
import os
import select
import sys
import time
from typing import Any
from xml.etree import ElementTree

import pinocchio

if not hasattr(pinocchio.Frame, "parentJoint"):
    # franky-sim is written for Pinocchio 3, where `parent` got this name.
    pinocchio.Frame.parentJoint = property(lambda frame: frame.parent)

from franky_sim.franka_gripper_protocol import GripperCommandStatus
from franky_sim.franka_gripper_server import FrankaGripperServer
from franky_sim.franka_robot_protocol import (
    AutomaticErrorRecoveryCommand,
    AutomaticErrorRecoveryStatus,
    BaseCommand,
    MoveStatus,
    RobotCommand,
    RobotMode,
)
from franky_sim.franka_robot_server import FrankaRobotServer
from franky_sim.mujoco_simulator import MUJOCO_DEFAULT_KV, MujocoSimulator

PATIENCE = 20
ANSWER = 0.05
"""s"""
LEAD = 10
"""ms"""
QUIET = 0.5
"""s: less than what libfranka waits for a state"""
IDLE_PERIOD = 0.004
"""Between steps while there is no motion, s: four times slower than time, which spares the machine."""
ERRORS = {"joint_reflex": 6, "cartesian_reflex": 7, "communication_constraints_violation": 29}
"""Places of libfranka's errors in the state."""
DAMPING = (*MUJOCO_DEFAULT_KV[:4], 50.0, 50.0, 50.0)
"""Nm s/rad. franky-sim's 200 for the wrist is more than its inertia bears at 1 kHz: held, it trembles."""
HOME = (0.0, -0.7854, 0.0, -2.3562, 0.0, 1.5708, 0.7854)


class Recovery(AutomaticErrorRecoveryCommand):
    """Clears a reflex, but not a pressed user stop."""

    def handle(self, server: "FaultyServer") -> None:
        if server.user_stopped:
            self.reply(AutomaticErrorRecoveryStatus.kManualErrorRecoveryRequiredRejected)
            return
        server.error = None
        self.reply(AutomaticErrorRecoveryStatus.kSuccess)


class FaultyHand(FrankaGripperServer):
    """franky-sim's hand, whose fingers may meet something."""

    blocked: float | None = None
    """They close no further than this, m, and a command to move further fails."""

    @property
    def busy(self) -> bool:
        return self._motion_state.value != "idle"

    def stop(self, command_id: int, tcp_socket: Any) -> None:
        self._answer(GripperCommandStatus.kAborted)
        super().stop(command_id, tcp_socket)

    def start_move(self, width: float, speed: float, *rest: Any) -> None:
        super().start_move(width, speed, *rest)
        self._meet(width, speed)

    def start_grasp(self, width: float, speed: float, *rest: Any) -> None:
        super().start_grasp(width, speed, *rest)
        self._meet(width, speed)

    def _meet(self, width: float, speed: float) -> None:
        if self.blocked is not None:
            self._robot.set_hand_goal(max(width, self.blocked), speed, 70.0)

    def _check_motion_state(self) -> None:
        moving = self._motion_state.value == "moving"
        if moving and self._settling_steps >= 99 and abs(self._goal_width - self._robot.hand_width) > 0.002:
            self._motion_state = type(self._motion_state).IDLE
            self._answer(GripperCommandStatus.kFail)
            return
        super()._check_motion_state()

    def _answer(self, status: GripperCommandStatus) -> None:
        """End the command under way."""
        if self._pending_command_id is not None:
            BaseCommand.send_response(
                self._pending_tcp_socket,
                self._pending_command_type,
                self._pending_command_id,
                status,
                command_type_struct="H",
                status_type_struct="H",
            )
        self._pending_command_id = self._pending_tcp_socket = self._pending_command_type = None


class FaultyServer(FrankaRobotServer):
    """franky-sim's server of one arm, which can refuse and stop."""

    def __init__(self, robot: Any, address: str) -> None:
        self.error: str | None = None
        self.user_stopped = False
        self.silent = False
        self.steps = 0
        self._unanswered = 0
        super().__init__(robot, [address])
        self._FrankaServer__command_class_map[RobotCommand.kAutomaticErrorRecovery] = Recovery

    def _bind_children(self, hostname: str) -> None:
        super()._bind_children(hostname)
        self.gripper_server.__class__ = FaultyHand

    def abort(self, status: MoveStatus) -> None:
        """End the motion in the arm's own way: hold."""
        motion = self.current_motion_id
        self.stop_motion(send_preemption_signal=False)
        if motion:
            BaseCommand.send_response(self._tcp_socket, RobotCommand.kMove, motion, status)
            self.reset_current_motion_id()

    def start_motion(self, *args: Any, **kwargs: Any) -> None:
        if self.error is not None or self.user_stopped:
            raise RuntimeError("this arm cannot move")  # the command answers with an abortion
        self._unanswered = 0
        super().start_motion(*args, **kwargs)

    @property
    def robot_state(self) -> Any:
        state = super().robot_state
        if self.error is not None:
            flags = tuple(place == ERRORS[self.error] for place in range(41))
            return state.replace(robot_mode=RobotMode.kReflex, errors=flags, reflex_reason=flags)
        if self.user_stopped:
            return state.replace(robot_mode=RobotMode.kUserStopped)
        return state

    def step(self, sim: MujocoSimulator) -> None:
        """One millisecond of the arm's time."""
        self.process_commands()
        sim.step()
        self.steps += 1
        if not self.silent:
            self.send_state()
        if self.current_motion_id:
            answer, _, _ = select.select([self._FrankaServer__udp_socket], [], [], ANSWER)
            self._unanswered = 0 if answer else self._unanswered + 1
            if self._unanswered >= PATIENCE:
                self.error = "communication_constraints_violation"
                self.abort(MoveStatus.kReflexAborted)

    def told(self, words: list[str], sim: MujocoSimulator) -> dict[str, Any]:
        """Do what a line of the test says. Returns the arm's state."""
        match words:
            case ["reset"]:
                self.error, self.user_stopped, self.silent = None, False, False
                self.gripper_server.blocked = None
                self.reset_state()
                assert sim.data is not None
                for joint, q in enumerate(HOME, 1):
                    sim.data.joint(f"robot0_fr3_joint{joint}").qpos = q
                sim.data.qvel[:] = 0
                self._reset_state()
            case ["reflex", name]:
                assert name in ERRORS
                self.error = name
                self.abort(MoveStatus.kReflexAborted)
            case ["user_stop", state]:
                self.user_stopped = state == "on"
                self.abort(MoveStatus.kPreemptedDueToActivatedSafetyFunctions)
            case ["silent", state]:
                self.silent = state == "on"
            case ["block", width]:
                self.gripper_server.blocked = None if width == "off" else float(width)
            case ["state"]:
                pass
            case _:
                raise ValueError(f"what is {words}?")
        inner = self.robot.inner_state
        return {
            "time": self.steps * 1_000_000,
            "q": inner.q,
            "dq": inner.dq,
            "moving": bool(self.current_motion_id),
            "error": self.error,
            "width": self.robot.hand_width,
            "hand_busy": self.gripper_server.busy,
            "grasped": self.gripper_server._is_grasping,
        }


def main() -> None:
    address = f"127.{os.getpid() % 250 + 1}.{os.getpid() // 250 % 250 + 1}.1"
    with MujocoSimulator() as sim:
        server = FaultyServer(sim.add_robot(initial_q=HOME, kv=DAMPING), address)
        server.init()
        without_looks(sim.scene)
        sim.start()
        print(address, flush=True)
        due = asked = time.monotonic()
        steps = 0
        while True:
            server.step(sim)
            active = server.current_motion_id or server.gripper_server.busy
            due = max(due + (0.001 if active else IDLE_PERIOD), time.monotonic())
            while _has_line(max(due, asked + QUIET) if server.steps - steps >= LEAD else due):
                line = sys.stdin.readline()
                if not line:
                    return
                asked, steps = time.monotonic(), server.steps
                print(json.dumps(server.told(line.split(), sim)), flush=True)


def _has_line(deadline: float) -> bool:
    """Wait until there is a line on stdin, or until the deadline."""
    return bool(select.select([sys.stdin], [], [], max(0.0, deadline - time.monotonic()))[0])


def without_looks(scene: ElementTree.Element) -> None:
    """Take out what only a renderer needs: compiling it takes many seconds."""
    for parent in list(scene.iter()):
        for child in list(parent):
            if child.tag == "mesh" or (child.tag == "geom" and child.get("mesh")):
                parent.remove(child)


if __name__ == "__main__":
    main()
