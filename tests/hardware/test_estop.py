"""The thread that serves stops, with its socket and without the control loop."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from robot_rl.hardware.client import RequestRefused, RobotClient
from robot_rl.hardware.clock import SteppedClock
from robot_rl.hardware.core.core import CoreSettings, RobotCore
from robot_rl.hardware.drivers.driver import DriverError
from robot_rl.hardware.estop import EstopThread
from robot_rl.hardware.protocol.codec import Stamper
from robot_rl.hardware.protocol.endpoints import Address, parse
from robot_rl.hardware.protocol.messages import Mode
from robot_rl.hardware.protocol.sockets import ServerSockets
from robot_rl.hardware.request_router import RequestRouter
from tests.hardware.core.small_arm import SmallArm


class FailingArm(SmallArm):
    """Raises these errors at its next stops."""

    errors: list[Exception]

    def stop(self) -> None:
        super().stop()
        if self.errors:
            raise self.errors.pop(0)


@pytest.fixture
def address(tmp_path: Path) -> Address:
    os.chmod(tmp_path, 0o700)
    return parse(f"ipc://{tmp_path}/r")


@pytest.fixture
def arm(address: Address) -> Iterator[FailingArm]:
    """An arm whose stops are served at the address."""
    clock = SteppedClock()
    arm, stamp = FailingArm(clock, "joint"), Stamper("server", clock)
    arm.errors = []
    core = RobotCore(arm, CoreSettings(), clock, "server")
    with zmq.Context() as context:
        sockets = ServerSockets(context, address)
        estop = EstopThread(sockets, arm, core.stop_queue, RequestRouter(core, stamp, clock), stamp)
        estop.start()
        yield arm
        estop.close()
        sockets.close()


def test_a_stop_that_fails_is_refused_with_the_reason_and_the_next_one_is_heard(
    arm: FailingArm, address: Address, capfd: pytest.CaptureFixture[str]
) -> None:
    arm.errors = [DriverError("the process ended"), AttributeError("no attribute 'halt'")]
    client = RobotClient(address, "hand", timeout=30.0)
    with pytest.raises(RequestRefused, match="did not accept the stop: the process ended"):
        client.stop()
    assert not capfd.readouterr().err
    with pytest.raises(RequestRefused, match=r"did not accept the stop: AttributeError\(.no attribute"):
        client.stop()
    assert client.stop().mode is Mode.FAULT
    assert arm.calls == ["stop"] * 3
    # A bug is not only told to who pressed stop.
    assert "Traceback" in capfd.readouterr().err
    client.close()
