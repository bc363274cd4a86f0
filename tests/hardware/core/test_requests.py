"""Arming holds the arm where it is once it is enabled, which takes seconds for some arms."""

import numpy as np
import pytest

from robot_rl.hardware.clock import MS
from robot_rl.hardware.drivers.driver import Pose
from robot_rl.hardware.protocol import messages as m
from robot_rl.hardware.protocol.messages import Code, Mode
from robot_rl.hardware.spec import Space
from tests.hardware.core.small_arm import OPERATOR, Bench


def idle(space: Space = "joint") -> Bench:
    bench = Bench(space)
    bench.core.open()
    bench.tick()
    return bench


def arm(bench: Bench) -> m.ServerMessage:
    return bench.ask(OPERATOR, m.Arm, spec_sha256=bench.arm.spec.sha256)


@pytest.mark.parametrize("space", ["joint", "cartesian"])
def test_an_arm_that_is_guided_by_hand_while_it_is_enabled_is_held_where_it_is_let_go(space: Space) -> None:
    bench = idle(space)
    before, enable = bench.arm.q, bench.arm.enable

    def slowly() -> None:
        bench.clock.advance(3000 * MS)
        bench.arm.shove(np.full_like(before, 0.1))
        enable()

    bench.arm.enable = slowly  # type: ignore[method-assign]
    assert isinstance(arm(bench), m.Done)
    bench.tick(20)
    written = bench.arm.written[0]
    if isinstance(written, Pose):
        written = bench.arm.kinematics.inverse(written, before)  # type: ignore[assignment]
    assert written == pytest.approx(before + 0.1, abs=1e-9)
    assert bench.arm.q == pytest.approx(before + 0.1, abs=1e-9)


@pytest.mark.parametrize("what", ["read", "nan", "frozen"])
def test_an_arm_that_cannot_be_measured_once_it_is_enabled_is_stopped(what: str) -> None:
    bench = idle()
    enable = bench.arm.enable

    def breaks() -> None:
        enable()
        bench.clock.advance(3000 * MS)
        if what == "read":
            bench.arm.failing.add(what)
        else:
            setattr(bench.arm, what, True)

    bench.arm.enable = breaks  # type: ignore[method-assign]
    answer = arm(bench)
    assert isinstance(answer, m.Refused)
    assert answer.code is Code.FAULT
    assert bench.core.mode is Mode.FAULT
    assert not bench.arm.enabled
    assert bench.arm.calls == ["stop"]
    assert bench.tick().setpoint == ()
