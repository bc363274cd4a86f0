"""Starts an episode as robosuite and robomimic start the playback of a demonstration; exports its model XML.

Their files hold the model's XML and the simulator's time, positions and velocities. A playback loads the
model, resets it without noise and sets the first state. So its controllers start with what they
sensed in the robot's home pose, not in the pose of the arm: the goal of the first step and the rest
posture of the null space depend on that. An episode that starts in the same way is reproduced by its
playback. robosuite's own `DataCollectionWrapper` does this for the same reason.
"""

from typing import Any
from xml.etree import ElementTree

import mujoco
import numpy as np


def begin_as_played_back(sim: Any) -> None:
    """Turn the state of a robosuite environment, right after its reset, into one that a playback starts from.

    Time, positions, velocities and the poses of the model's bodies stay. Controllers start as after
    robosuite's `reset_from_xml_string`, and nothing is random.
    """
    model = sim.sim.model
    flat, placed = sim.sim.get_state().flatten(), (model.body_pos.copy(), model.body_quat.copy())
    sim.deterministic_reset = True
    try:
        sim.reset()
    finally:
        sim.deterministic_reset = False
    sim.sim.reset()
    model.body_pos[:], model.body_quat[:] = placed
    sim.sim.set_state_from_flattened(flat)
    sim.sim.forward()


def go_to_flattened(sim: Any, state: np.ndarray, step: int) -> None:
    """Set the environment to the flattened state (time, positions, velocities) of an episode's step.

    Controllers are reset, since their goals are not in it. At step 0 they start as in a playback.
    """
    sim.sim.set_state_from_flattened(state)
    if step == 0:
        begin_as_played_back(sim)
    else:
        sim.sim.forward()
        for robot in sim.robots:
            for controller in robot.composite_controller.part_controllers.values():
                controller.update(force=True)
                controller.reset_goal()
    sim.timestep, sim.cur_time = step, float(state[0])


class ModelXml:
    """Writes XML that compiles to the model of a robosuite environment.

    MuJoCo itself writes six digits of each number, which gives another model. robosuite keeps the XML
    that it compiled. Poses of bodies that a reset has placed since (Door's) are written to it with all
    digits. What MuJoCo derives from these poses at compilation, such as `dof_invweight0`, differs in the
    last digit.
    """

    def __init__(self, sim: Any) -> None:
        self._sim = sim
        self._root = ElementTree.fromstring(sim.edit_model_xml(sim.model.get_xml()))
        self._compiled = mujoco.MjModel.from_xml_string(self._text())

    def now(self) -> str:
        """XML of the model in its current state."""
        model, compiled = self._sim.sim.model._model, self._compiled
        moved = np.flatnonzero(
            (model.body_pos != compiled.body_pos).any(1) | (model.body_quat != compiled.body_quat).any(1)
        )
        bodies = {body.get("name"): body for body in self._root.iter("body")}
        for index in moved.tolist():
            body = bodies[model.body(index).name]
            for other in ("axisangle", "xyaxes", "zaxis", "euler"):
                body.attrib.pop(other, None)
            body.set("pos", _numbers(model.body_pos[index]))
            body.set("quat", _numbers(model.body_quat[index]))
            self._compiled.body_pos[index] = model.body_pos[index]
            self._compiled.body_quat[index] = model.body_quat[index]
        return self._text()

    def _text(self) -> str:
        return ElementTree.tostring(self._root, encoding="unicode")


def _numbers(values: np.ndarray) -> str:
    return " ".join(repr(float(value)) for value in values)
