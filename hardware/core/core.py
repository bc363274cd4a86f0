"""RobotCore: handles all requests to one arm and moves it at each tick; no sockets, no threads."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.core import modes
from robot_rl.hardware.core.arm_motion import ArmMotion, GripperMailbox, cartesian_arm, joint_arm
from robot_rl.hardware.core.commands import Commands
from robot_rl.hardware.core.events import EventLog, Refusal
from robot_rl.hardware.core.lease import Leases, Peer
from robot_rl.hardware.core.modes import Cause
from robot_rl.hardware.core.reports import Reports
from robot_rl.hardware.core.requests import Requests
from robot_rl.hardware.core.supervisor import Supervisor
from robot_rl.hardware.drivers.driver import Driver
from robot_rl.hardware.protocol import messages as m
from robot_rl.hardware.protocol.codec import Stamper
from robot_rl.hardware.protocol.messages import Code, Mode
from robot_rl.hardware.spec import Latency, check_spec

# Commands kept until they are published.
_MAX_COMMANDED = 1000


@dataclass(frozen=True)
class CoreSettings:
    """Settings of the server rather than of the robot."""

    lease_ms: int = 100
    """A lease is lost when its holder has sent commands and then none for this long, ms."""
    boot_id: str = ""
    """Boot id of the machine, sent in `Welcome`."""
    latency: Latency | None = None
    """Measured latency of the robot, sent in `Welcome`."""

    def __post_init__(self) -> None:
        if not 10 <= self.lease_ms <= 1000:
            raise ValueError(f"lease_ms is {self.lease_ms}; choose 10 to 1000")


class RobotCore:
    """Modes, lease, faults and motion of one arm. For one thread; only `stop_queue` is thread-safe.

    It does no I/O itself and takes time only from `clock`, so its behaviour is deterministic.
    """

    def __init__(
        self,
        driver: Driver,
        settings: CoreSettings,
        clock: Clock,
        session: str,
        gripper: GripperMailbox | None = None,
    ) -> None:
        """Create the core for a closed driver; call `open` next.

        Raises:
            ValueError: if the driver's spec is invalid.
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
        self.commanded: deque[m.Commanded] = deque(maxlen=_MAX_COMMANDED)
        """Commands and their results, to be taken out and published by the server."""
        leases = Leases(settings.lease_ms * MS)
        supervisor = Supervisor(self._motion, leases, self.events, clock, spec.rate)
        self._supervisor = supervisor
        self.stop_queue = supervisor.stop_queue
        """For the e-stop thread: first `stop_queue.put`, then the driver's `stop`."""
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
        """The arm's present mode."""
        return self._supervisor.mode

    @property
    def fault(self) -> str:
        """Text of the latched fault, "" without one."""
        return self._supervisor.fault

    @property
    def loop(self) -> m.Loop | None:
        """Timing of the control loop, set by the server and published with each state."""
        return self._reports.loop

    @loop.setter
    def loop(self, loop: m.Loop | None) -> None:
        self._reports.loop = loop

    def open(self) -> None:
        """Connect the driver.

        Raises:
            DriverError: if it cannot connect.
        """
        self._driver.open()
        self._supervisor.transition(Cause.OPENED)

    def fail(self, name: str, text: str) -> None:
        """Latch a fault detected by the server; may be called at every tick and is logged once."""
        if self.mode is not Mode.DISCONNECTED:
            self._supervisor.latch_once(name, text)

    def begin_shutdown(self) -> None:
        """End the lease, brake and refuse all further requests except stops and queries."""
        self._retired = True
        lease = self._supervisor.leases.end()
        self._motion.clear_goals()
        text = "the server is shutting down"
        self.events.append("lease", f"lease {lease.number} ends: {text}" if lease else text)
        if self.mode in modes.ENABLED:
            self._supervisor.transition(Cause.LEASE_TAKEN)

    def close(self) -> None:
        """Stop the arm and disconnect. Safe to call twice.

        Raises:
            DriverError: if the arm did not accept the stop; it is disconnected anyway.
        """
        try:
            if self._motion.enabled:
                self._motion.disable()
        finally:
            self._driver.close()
            if self.mode is not Mode.DISCONNECTED:
                self._supervisor.transition(Cause.CLOSED)

    def tick(self, between: Callable[[], object] = lambda: None) -> m.State:
        """Run one control period: measure, check, move. Returns the state to publish.

        Reading the driver takes a large part of the tick, so `between` is called after it to handle the
        requests that have arrived meanwhile.
        """
        measured = self._supervisor.begin_tick()
        between()
        self._supervisor.end_tick(measured)
        return self._reports.state()

    def handle(self, peer: Peer, message: m.ClientMessage) -> m.ServerMessage:
        """Carry out a request, or refuse it with a reason, which is also logged as an event."""
        answer = self._answer(peer, message)
        if isinstance(message, m.Command):
            self.commanded.append(self._reports.commanded(peer, message, answer))
        return answer

    def _answer(self, peer: Peer, message: m.ClientMessage) -> m.ServerMessage:
        self._supervisor.process_stops()
        self._supervisor.expire(self._clock.now())
        try:
            if self._retired and type(message) not in modes.NEVER_MOVE:
                raise Refusal(Code.MODE, "the server is shutting down")
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
