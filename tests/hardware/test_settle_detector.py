"""When an arm counts as at rest, and as at home."""

import msgspec

from robot_rl.hardware.settle_detector import SettleDetector
from tests.hardware.teleop.states import PANDA, state


def test_an_arm_that_stands_elsewhere_is_not_at_home() -> None:
    def seen(setpoint: tuple[float, ...], dq: float = 0.0) -> list[bool]:
        settled = SettleDetector.at_home(PANDA)
        states = (
            msgspec.structs.replace(state(), seq=seq, setpoint=setpoint, dq=(dq,) * 7) for seq in range(30)
        )
        return [settled.update(each) for each in states]

    assert seen(PANDA.home) == [False] * 10 + [True] * 20
    assert not any(seen((PANDA.home[0] + 1e-3, *PANDA.home[1:])))
    assert not any(seen(PANDA.home, dq=0.1))
    assert not any(seen(()))
