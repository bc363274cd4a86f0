"""States of an arm, as a server would publish them."""

from pathlib import Path

from robot_rl.hardware.protocol.messages import Mode, State
from robot_rl.hardware.robot_file import load_robot
from robot_rl.hardware.spec import RobotSpec

PANDA = load_robot(Path(__file__).parents[3] / "configs" / "robot" / "sim_panda.yaml").spec
DOWN = (1.0, 0.0, 0.0, 0.0)


def state(
    position: tuple[float, ...] = (0.5, 0.0, 0.3),
    quaternion: tuple[float, ...] = DOWN,
    q: tuple[float, ...] = PANDA.home,
    spec: RobotSpec = PANDA,
) -> State:
    return State(
        src="server",
        seq=1,
        tm=1,
        t_sample=1,
        q=q,
        dq=(0.0,) * len(spec.joints),
        position=position,
        quaternion=quaternion,
        mode=Mode.ARMED,
    )
