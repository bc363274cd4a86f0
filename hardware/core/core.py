"""RobotCore: the one place that decides. Requests come between ticks; at a tick the arm moves or holds."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.core import modes
from robot_rl.hardware.core.arm_motion import ArmMotion, GripperMailbox, cartesian_arm, joint_arm
from robot_rl.hardware.core.commands import Commands
from robot_rl.hardware.core.events import EventLog
from robot_rl.hardware.core.lease import Leases
from robot_rl.hardware.core.modes import Cause
from robot_rl.hardware.core.peer import Peer
from robot_rl.hardware.core.refusal import Refusal
from robot_rl.hardware.core.reports import Reports
from robot_rl.hardware.core.requests import Requests
from robot_rl.hardware.core.supervisor import Supervisor
from robot_rl.hardware.drivers.base import Driver
from robot_rl.hardware.protocol import messages as m
from robot_rl.hardware.protocol.codec import Stamper
from robot_rl.hardware.protocol.messages import Code, Mode
from robot_rl.hardware.spec import Latency
from robot_rl.hardware.spec_check import check_spec

_COMMANDED = 1000
# Kept for whoever publishes them, at the most.


@dataclass(frozen=True)
class CoreSettings:
    """What is not the robot's but the server's."""

    lease_ms: int = 100
    """A lease's holder that has begun to command and is silent for so long has lost it."""
    boot_id: str = ""
    """Of the machine, for `Welcome`."""
    latency: Latency | None = None
    """Of the robot, for `Welcome`."""

    def __post_init__(self) -> None:
        if not 10 <= self.lease_ms <= 1000:
            raise ValueError(f"lease_ms is {self.lease_ms}; choose 10 to 1000")


class RobotCore:
    """Modes, lease, faults and motion of one arm. One thread calls it; `estop` alone is for others.

    Nothing in here waits, and time is the clock's: what it does depends on nothing else.
    """

    def __init__(
        self,
        driver: Driver,
        settings: CoreSettings,
        clock: Clock,
        session: str,
        gripper: GripperMailbox | None = None,
    ) -> None:
        """Make it for a closed driver; `open` comes next.

        Raises:
            ValueError: the driver's spec cannot be.
        """
        spec = driver.spec
        check_spec(spec)
        self._driver = driver
        self._clock = clock
        self._stamp = Stamper(session, clock)
        self._motion: ArmMotion[Any] = (
            joint_arm(driver, gripper) if spec.space == "joint" else cartesian_arm(driver, gripper)
        )
        self.events = EventLog(self._stamp)
        self._retired = False
        self.commanded: deque[m.Commanded] = deque(maxlen=_COMMANDED)
        """What was commanded and is to be published; whoever does takes it out."""
        leases = Leases(settings.lease_ms * MS)
        supervisor = Supervisor(self._motion, leases, self.events, clock, spec.rate)
        self._supervisor = supervisor
        self.estop = supervisor.estop
        """For the e-stop's thread: first `estop.pull`, then the driver's `stop`."""
        self._reports = Reports(
            supervisor,
            spec,
            settings.lease_ms,
            settings.boot_id,
            settings.latency,
            gripper,
            clock,
            self._stamp,
        )
        requests = Requests(supervisor, driver, spec.sha256, clock, self._stamp)
        commands = Commands(supervisor, spec, clock, self._stamp)
        self._answers: Mapping[type[m.Message], Callable[[Peer, Any], m.ServerMessage]] = {
            m.Hello: self._reports.hello,
            m.TimeSync: self._reports.time_sync,
            m.GetSpec: self._reports.spec,
            m.EventsSince: self._reports.events,
            m.SampleNow: self._reports.sample,
            m.Stop: requests.stop,
            m.AcquireLease: requests.acquire,
            m.ReleaseLease: requests.release,
            m.Arm: requests.arm,
            m.ResetScene: requests.reset_scene,
            m.Disarm: requests.disarm,
            m.Pause: requests.pause,
            m.Resume: requests.resume,
            m.AcknowledgeFault: requests.acknowledge,
            m.Home: commands.home,
            m.Command: commands.command,
        }

    @property
    def mode(self) -> Mode:
        """What the arm is in."""
        return self._supervisor.mode

    @property
    def fault(self) -> str:
        """What latched the fault, "" without one."""
        return self._supervisor.fault

    @property
    def loop(self) -> m.Loop | None:
        """How the server keeps time: it sets this, and states carry it."""
        return self._reports.loop

    @loop.setter
    def loop(self, loop: m.Loop | None) -> None:
        self._reports.loop = loop

    def open(self) -> None:
        """Connect the driver.

        Raises:
            DriverError: it cannot.
        """
        self._driver.open()
        self._supervisor.change(Cause.OPENED)

    def fail(self, name: str, text: str) -> None:
        """Stop the arm for a fault that the server has found in itself; told each tick, one event."""
        if self.mode is not Mode.DISCONNECTED:
            self._supervisor.latch_once(name, text)

    def retire(self) -> None:
        """End the lease, brake, and follow nothing any more; only stops and questions are answered."""
        self._retired = True
        lease = self._supervisor.leases.end()
        self._motion.let_go()
        text = "the server shuts down: nothing is followed any more"
        self.events.append("lease", f"lease {lease.number} ends: {text}" if lease else text)
        if self.mode in modes.ENABLED:
            self._supervisor.change(Cause.LEASE_TAKEN)

    def close(self) -> None:
        """Stop the arm and disconnect. Safe to call twice.

        Raises:
            DriverError: it did not take the stop; it is disconnected all the same.
        """
        try:
            if self._motion.enabled:
                self._motion.disable()
        finally:
            self._driver.close()
            if self.mode is not Mode.DISCONNECTED:
                self._supervisor.change(Cause.CLOSED)

    def tick(self, between: Callable[[], object] = lambda: None) -> m.State:
        """Once per period: read, decide, move. What it returns is to be published.

        Reading may take as long as all the rest: what came meanwhile can be handled `between` the two.
        """
        measured = self._supervisor.begin_tick()
        between()
        self._supervisor.end_tick(measured)
        return self._reports.state()

    def handle(self, peer: Peer, message: m.ClientMessage) -> m.ServerMessage:
        """Carry out a request, or refuse it with a reason that is in the event log as well."""
        answer = self._answer(peer, message)
        if isinstance(message, m.Command):
            self.commanded.append(self._reports.commanded(peer, message, answer))
        return answer

    def _answer(self, peer: Peer, message: m.ClientMessage) -> m.ServerMessage:
        self._supervisor.see_stops()
        self._supervisor.expire(self._clock.now())
        try:
            if self._retired and type(message) not in modes.NEVER_MOVE:
                raise Refusal(Code.MODE, "the server shuts down and follows nothing any more")
            if not isinstance(message, m.Command):
                modes.check_role(peer.role, message)
            return self._answers[type(message)](peer, message)
        except Refusal as refusal:
            seq = message.seq if isinstance(message, m.Command) else 0
            name = type(message).__struct_config__.tag
            text = f"{name} {seq}: {refusal.reason}" if seq else f"{name}: {refusal.reason}"
            self.events.append("refused", text, peer.name, refusal.code)
            return self._stamp(
                m.Refused, id=message.id, code=refusal.code, reason=refusal.reason, command=seq
            )
