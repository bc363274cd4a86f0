"""From samples to commands, in stepped time."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from robot_rl.hardware.clock import MS
from robot_rl.hardware.core import rotation
from robot_rl.hardware.protocol.messages import State
from robot_rl.hardware.teleop.device import Sample
from robot_rl.hardware.teleop.engagement import ClutchState
from robot_rl.hardware.teleop.motion import LEAD_S, RAMP_S, Speed, Target
from robot_rl.hardware.teleop.teleoperator import Teleoperator
from tests.hardware.teleop.states import PANDA, state

SPEED = Speed(0.2, 0.8)
FORWARD = (1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
REST = (0.0,) * 6
AT = state()


class Hands:
    """A device in stepped time, 20 ms a step."""

    def __init__(self, teleoperator: Teleoperator) -> None:
        self.teleoperator = teleoperator
        self.now = 1_000 * MS

    def step(
        self,
        motion: Sequence[float] = REST,
        at: State = AT,
        *,
        enable: bool = True,
        joints: Sequence[float] = (),
        gripper: float | None = None,
        age_ms: float = 0,
        after_ms: float = 20,
    ) -> Target | None:
        self.now += round(after_ms * MS)
        t = self.now - round(age_ms * MS)
        motion = () if joints else motion
        sample = Sample(t=t, enable=enable, motion=tuple(motion), joints=tuple(joints), gripper=gripper)
        return self.teleoperator.update(sample, at, self.now)

    def press(self, **options: object) -> Target | None:
        self.step(enable=False, **options)  # type: ignore[arg-type]
        return self.step(**options)  # type: ignore[arg-type]


@pytest.fixture
def hands() -> Hands:
    return Hands(Teleoperator(PANDA, SPEED))


def test_without_the_clutch_there_is_no_aim(hands: Hands) -> None:
    assert hands.step(FORWARD, enable=False) is None
    assert hands.step(FORWARD, enable=False) is None


def test_the_press_latches_the_pose_and_moves_nothing(hands: Hands) -> None:
    hands.step(enable=False)
    target = hands.step(FORWARD)
    assert target is not None
    assert target.mode == "cartesian_pose"
    assert target.data == (*AT.position, *AT.quaternion)
    # The next press begins where the arm is then.
    elsewhere = state(position=(0.4, 0.1, 0.2))
    assert hands.step(FORWARD, elsewhere, enable=False) is None
    target = hands.step(FORWARD, elsewhere)
    assert target is not None
    assert target.data[:3] == elsewhere.position


def test_rates_are_integrated_over_the_time_that_passed(hands: Hands) -> None:
    hands.press()
    for after_ms in (20, 10, 30):
        target = hands.step(FORWARD, after_ms=after_ms)
    assert target is not None
    np.testing.assert_allclose(target.data[:3], (0.5 + 0.2 * 0.06, 0.0, 0.3), atol=1e-12)
    target = hands.step((0, 0, 0, 0, 0, 1.0))
    assert target is not None
    turned = rotation.between(AT.quaternion, target.data[3:])
    np.testing.assert_allclose(turned, (0.0, 0.0, 0.8 * 0.02), atol=1e-9)


def test_a_diagonal_is_no_faster_than_full_speed(hands: Hands) -> None:
    hands.press()
    target = hands.step((1.0, 1.0, 1.0, 0, 0, 0))
    assert target is not None
    assert math.dist(target.data[:3], AT.position) == pytest.approx(0.2 * 0.02)


def test_a_goal_never_leads_an_arm_that_is_held_up_by_more_than_the_bound(hands: Hands) -> None:
    hands.press()
    for _ in range(500):
        target = hands.step((1.0, 0, 0, 1.0, 0, 0))
        assert target is not None
        assert math.dist(target.data[:3], AT.position) <= 0.2 * LEAD_S + 1e-9
        assert rotation.angle(AT.quaternion, target.data[3:]) <= 0.8 * LEAD_S + 1e-9
    # It comes back at once: nothing has wound up.
    back = hands.step((-1.0, 0, 0, 0, 0, 0))
    assert back is not None
    assert back.data[0] < target.data[0] - 0.003


def test_a_loop_that_was_late_does_not_hurry(hands: Hands) -> None:
    hands.press()
    target = hands.step(FORWARD, after_ms=5000)
    assert target is not None
    assert target.data[0] - AT.position[0] <= 0.2 * 0.1 + 1e-12


def test_what_the_server_clipped_is_where_it_goes_on(hands: Hands) -> None:
    hands.press()
    hands.step(FORWARD)
    clipped = (0.5005, 0.0, 0.3, *AT.quaternion)
    hands.teleoperator.correct(clipped)
    target = hands.step(FORWARD)
    assert target is not None
    assert target.data[0] == pytest.approx(0.5005 + 0.004)
    hands.teleoperator.restart()
    elsewhere = state(position=(0.45, 0.0, 0.3))
    target = hands.step(FORWARD, elsewhere)
    assert target is not None
    assert target.data[:3] == elsewhere.position


@pytest.mark.parametrize(
    ("sample", "why"),
    [
        ({"motion": (math.nan, 0, 0, 0, 0, 0)}, "each must be in -1 to 1"),
        ({"motion": (2.0, 0, 0, 0, 0, 0)}, "each must be in -1 to 1"),
        ({"motion": (1.0,)}, "it must give 6"),
        ({"gripper": math.nan}, "a gripper opening of nan"),
        ({"age_ms": -50}, "from the future: 50 ms ahead"),
        ({"age_ms": 100}, "older than the one before"),
        ({"joints": [*PANDA.home[:2], math.nan, *PANDA.home[3:]]}, "the leader's joint3 is nan"),
        ({"joints": PANDA.home[:6]}, "the leader has 6 joints, sim_panda has 7"),
    ],
)
def test_a_sample_that_cannot_be_holds_the_arm_by_name(
    hands: Hands, sample: dict[str, object], why: str
) -> None:
    assert hands.press() is not None
    if "joints" in sample:
        hands.press(joints=PANDA.home)
    assert hands.step(**sample) is None  # type: ignore[arg-type]
    assert why in hands.teleoperator.notice
    assert hands.teleoperator.state is ClutchState.LAPSED
    # Valid samples alone do not resume the motion: the clutch must be pressed again.
    assert hands.step(after_ms=200) is None
    assert hands.press() is not None


def test_silence_holds_and_a_late_sample_goes_on_from_where_the_arm_is(hands: Hands) -> None:
    hands.press()
    moved = state(position=(0.52, 0.0, 0.3))
    assert hands.step(FORWARD, moved) is not None
    silent = Sample(t=hands.now, enable=True, motion=FORWARD)
    hands.now += 151 * MS
    assert hands.teleoperator.update(silent, moved, hands.now) is None
    assert hands.teleoperator.state is ClutchState.HELD
    target = hands.step(FORWARD, moved)
    assert target is not None
    assert target.data[:3] == moved.position


def test_a_grasp_survives_the_clutch(hands: Hands) -> None:
    assert hands.press(gripper=1.0) == Target("cartesian_pose", (*AT.position, *AT.quaternion), None)
    target = hands.step(gripper=0.0)
    assert target is not None
    assert target.gripper == 0.0
    # Released and pressed with the trigger open meanwhile: it does not let go before it is used.
    hands.step(enable=False, gripper=0.0)
    target = hands.press(gripper=0.3)
    assert target is not None
    assert target.gripper is None
    target = hands.step(gripper=0.5)
    assert target is not None
    assert target.gripper == 0.5


def leader(**off: float) -> list[float]:
    return [angle + off.get(name, 0.0) for name, angle in zip(PANDA.joints, PANDA.home, strict=True)]


def test_a_leader_that_is_far_holds_and_says_how_far_each_joint_is(hands: Hands) -> None:
    far = leader(joint2=0.3, joint6=-0.2, joint1=0.01)
    assert hands.press(joints=far) is None
    assert hands.teleoperator.notice.endswith("more than 0.05 rad: joint2 +0.30, joint6 -0.20")
    # It is brought there by hand, with the clutch pressed.
    for part in (0.8, 0.6, 0.4, 0.2, 0.1):
        target = hands.step(joints=leader(joint2=0.3 * part, joint6=-0.2 * part))
    assert target is not None
    assert target.data == pytest.approx(PANDA.home)


def test_what_lies_between_leader_and_arm_is_taken_up_slowly(hands: Hands) -> None:
    near = leader(joint1=0.04)
    target = hands.press(joints=near)
    steps = []
    for _ in range(round(RAMP_S / 0.02) + 1):
        assert target is not None
        assert target.mode == "joint_position"
        steps.append(target.data[0])
        target = hands.step(joints=near)
    assert steps[0] == pytest.approx(PANDA.home[0])
    assert steps[-1] == pytest.approx(near[0])
    assert max(np.diff(steps)) <= 0.04 * 0.02 / RAMP_S + 1e-9


def test_a_leader_that_jumps_holds_the_arm(hands: Hands) -> None:
    hands.press(joints=PANDA.home)
    assert hands.step(joints=leader(joint4=0.1)) is not None
    assert hands.step(joints=leader(joint4=0.1 + 2 * math.pi)) is None
    assert "the leader's joint4 jumped by +6.28 rad in 20 ms" in hands.teleoperator.notice


def test_a_device_that_does_not_fit_the_robot_is_told_so() -> None:
    cartesian = msgspec.structs.replace(PANDA, name="lift", modes=("cartesian_pose", "cartesian_delta"))
    hands = Hands(Teleoperator(cartesian, SPEED))
    assert hands.press(joints=PANDA.home) is None
    assert "lift takes cartesian_pose, cartesian_delta, and this device gives joints" in (
        hands.teleoperator.notice
    )
