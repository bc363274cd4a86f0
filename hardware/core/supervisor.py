"""Mode, fault latch and control tick of the arm, including lease time-outs and software e-stops."""

from collections import deque
from typing import Any

from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.core import modes
from robot_rl.hardware.core.arm_motion import STALE_TICKS, ArmMotion, MeasurementFault
from robot_rl.hardware.core.events import EventLog, one_line
from robot_rl.hardware.core.lease import Leases
from robot_rl.hardware.core.modes import Cause
from robot_rl.hardware.drivers.driver import DriverError, Measurement
from robot_rl.hardware.protocol.messages import Code, Mode

HOLD = 500 * MS
"""Time in hold after a lost lease before the arm is stopped with a fault, ns."""
# A fault's text is part of every state and of refusals.
_MAX_FAULT_TEXT = 400
# Events about the same ongoing lead limit are at least this far apart, ns.
_LEAD_EVENT_INTERVAL = 1000 * MS


class StopQueue:
    """Stops requested by the e-stop thread, processed by the next `handle` or `tick`. Thread-safe.

    The e-stop thread stops the driver itself; the queue tells the core about it.
    """

    def __init__(self) -> None:
        # Append and popleft of a deque are atomic. More than a few pending stops add no information.
        self._stops: deque[tuple[str, str]] = deque(maxlen=16)

    def put(self, who: str, reason: str) -> None:
        """Record who stopped the arm and why. From any thread; call it before `Driver.stop`."""
        self._stops.append((who, reason))

    def take(self) -> tuple[str, str] | None:
        """Remove and return the oldest stop, or None if there is none."""
        try:
            return self._stops.popleft()
        except IndexError:
            return None


class Supervisor:
    """Owns the mode, the latched fault, the lease and the motion, and runs the control tick."""

    def __init__(
        self, motion: ArmMotion[Any], leases: Leases, events: EventLog, clock: Clock, rate: float
    ) -> None:
        self.motion = motion
        self.leases = leases
        self.events = events
        self.stop_queue = StopQueue()
        self.mode = Mode.DISCONNECTED
        self.fault = ""
        self._clock = clock
        self._max_tick_gap = int(STALE_TICKS * 1e9 / rate)
        self._last_tick: int | None = None
        self._hold_since = 0
        self._last_lead_event = -_LEAD_EVENT_INTERVAL
        # Names of the causes of the latched fault: each is logged once.
        self._faults: set[str] = set()

    def check_transition(self, cause: Cause) -> None:
        """Check that the transition table allows `cause` in the present mode.

        Raises:
            Refusal: if it does not.
        """
        modes.next_mode(self.mode, cause, self.fault)

    def transition(self, cause: Cause, who: str = "") -> None:
        """Change the mode as the transition table says.

        Raises:
            Refusal: if the table has no such transition.
        """
        following = modes.next_mode(self.mode, cause, self.fault)
        if following is not self.mode:
            self.events.append("mode", f"{self.mode} -> {following} by {cause}", who)
            self.mode = following

    def latch(self, cause: Cause, name: str, text: str, who: str = "") -> None:
        """Stop the arm, end the lease and stay in fault until an operator acknowledges it."""
        try:
            self.motion.disable()
        except DriverError as error:
            text = f"{text}; and the arm did not accept the stop: {error}"
        text = one_line(text, _MAX_FAULT_TEXT)
        lease = self.leases.end()
        if lease:
            self.events.append("lease", f"lease {lease.number} ends with the fault", lease.holder.name)
        if name == "stop" or name not in self._faults:
            self.events.append("stop" if name == "stop" else "fault", f"{name}: {text}", who)
        self._faults.add(name)
        self.fault = self.fault or f"{name}: {text}"
        self.transition(cause, who)

    def stop(self, who: str, reason: str) -> None:
        """Software e-stop, in any mode."""
        if self.mode is Mode.DISCONNECTED:
            self.events.append("stop", f"stop: {reason}; no arm is connected", who)
        else:
            self.latch(Cause.STOP, "stop", f"{who}: {reason}" if reason else who, who)

    def process_stops(self) -> None:
        """Process the stops queued by the e-stop thread."""
        while stopped := self.stop_queue.take():
            self.stop(*stopped)

    def clear_fault(self, reason: str, who: str) -> None:
        """Leave the fault mode: an operator acknowledged the fault and the driver has recovered."""
        self.motion.acknowledge_gripper()
        self.events.append("acknowledged", f"{self.fault}: {reason}", who)
        self.transition(Cause.ACKNOWLEDGE, who)
        self.fault = ""
        self._faults.clear()

    def reset_tick_timer(self) -> None:
        """Measure tick gaps from now on; call it when the arm is enabled."""
        self._last_tick = self._clock.now()

    def measure(self) -> Measurement | None:
        """Read the arm. Returns None and latches a fault if the reading fails or is invalid."""
        try:
            return self.motion.measure(self._clock)
        except DriverError as error:
            self.latch_once("driver", str(error))
        except MeasurementFault as error:
            self.latch_once("measurement", str(error))
        return None

    def latch_once(self, name: str, text: str) -> None:
        """Latch a fault that is detected at every tick; it is logged once until it is acknowledged."""
        # An arm in fault is already stopped and may not be readable: do not stop it again at each tick.
        if self.mode is not Mode.FAULT or name not in self._faults:
            self.latch(Cause.FAULT, name, text)

    def expire(self, now: int) -> None:
        """Time out the lease and the hold mode."""
        lease = self.leases.expired(now)
        if lease:
            self.leases.end()
            self.motion.clear_goals()
            if lease.begun:
                self._hold_since = now
                self.events.append(
                    "lease", f"lease {lease.number} is lost: no valid command", lease.holder.name
                )
                self.transition(Cause.LEASE_LOST, lease.holder.name)
            else:
                self.events.append("lease", f"lease {lease.number} expired unused", lease.holder.name)
                self.transition(Cause.LEASE_LAPSED, lease.holder.name)
        if self.mode is Mode.HOLD and now - self._hold_since > HOLD:
            self.latch(
                Cause.HOLD_OVER,
                "lease_lost",
                f"no client took the lost lease within {HOLD // MS} ms of holding",
            )

    def begin_tick(self) -> Measurement | None:
        """First half of a tick: measure. Returns None if there is no valid measurement."""
        self.process_stops()
        if self.mode is Mode.DISCONNECTED:
            return None
        now = self._clock.now()
        late = now - self._last_tick if self._last_tick is not None else 0
        self._last_tick = now
        if late > self._max_tick_gap and self.motion.enabled:
            # The arm has come to rest at its last setpoint; continuing with the old velocity would be a jump.
            self.motion.freeze()
            self.events.append("overrun", f"no tick for {late / MS:.0f} ms: the setpoint was frozen")
        measured = self.measure()
        if gripper_fault := self.motion.gripper_fault:
            self.latch_once("gripper", gripper_fault)
        return measured

    def end_tick(self, measured: Measurement | None) -> None:
        """Second half of a tick: expire the lease and move. Commands handled in between already count."""
        if self.mode is Mode.DISCONNECTED:
            return
        now = self._clock.now()
        self.expire(now)
        if measured is None or self.mode not in modes.ENABLED:
            return
        for waypoint in self.motion.due(now):
            age = (now - waypoint.expires) / MS
            self.events.append(
                "refused",
                f"command {waypoint.seq} was dropped: {age:.1f} ms too old at its tick",
                code=Code.STALE,
            )
        self._move(measured, now)

    def _move(self, measured: Measurement, now: int) -> None:
        seq = self.motion.goal_seq
        try:
            step = self.motion.advance(measured)
        except DriverError as error:
            self.latch(Cause.FAULT, "driver", str(error))
            return
        if step.stopped:
            limit = ", ".join(step.clipped)
            self.events.append("limit", f"command {seq} was dropped: the path to its goal exceeds {limit}")
        elif any(name.startswith("lead_") for name in step.clipped):
            if now - self._last_lead_event > _LEAD_EVENT_INTERVAL:
                limit = ", ".join(step.clipped)
                self.events.append("limit", f"the arm does not follow: {limit} holds the setpoint back")
            self._last_lead_event = now
