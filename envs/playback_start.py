"""The start from which robosuite and robomimic play a demonstration back, and the model of it as XML.

Their files keep the model's XML and, of the simulator, time, positions and velocities. A playback loads the
model, resets it without noise and writes the first state into it. So its controllers begin with what they
sensed in the robot's home pose, and not where the arm is: the first step's goal and the posture to which the
null space returns follow from that. An episode that begins so itself comes out the same when it is played
back; robosuite's own `DataCollectionWrapper` begins its episodes so for this reason.
"""

from typing import Any
from xml.etree import ElementTree

import mujoco
import numpy as np


def begin_as_played_back(sim: Any) -> None:
    """Make the state of a robosuite environment, right after its reset, one from which a playback begins.

    Time, positions, velocities and the poses of the model's bodies stay; controllers begin as robosuite's
    `reset_from_xml_string` makes them, and nothing is random.
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
    """Go to a flattened state (time, positions, velocities) of an episode's step.

    Controllers begin anew there, as their goals are not in it. At the first step of an episode they are those
    with which a playback begins.
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
    """XML that compiles to the model of a robosuite environment.

    MuJoCo writes six digits of each number, which is another model; robosuite still has the XML that it
    compiled. Bodies that a reset has placed since (Door's) are written into it with all digits; what MuJoCo
    derives from their place at compilation (`dof_invweight0` and others) then differs in the last digit.
    """

    def __init__(self, sim: Any) -> None:
        self._sim = sim
        self._root = ElementTree.fromstring(sim.edit_model_xml(sim.model.get_xml()))
        self._compiled = mujoco.MjModel.from_xml_string(self._text())

    def now(self) -> str:
        """Of the model as it is."""
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
