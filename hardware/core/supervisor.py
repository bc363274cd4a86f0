"""What happens to the arm without anybody asking: faults, silence, time, and the tick itself."""

from typing import Any

from robot_rl.hardware.clock import MS, Clock
from robot_rl.hardware.core import modes
from robot_rl.hardware.core.arm_motion import STALE_TICKS, ArmMotion, MeasurementFault
from robot_rl.hardware.core.events import EventLog
from robot_rl.hardware.core.lease import Leases
from robot_rl.hardware.core.modes import Cause
from robot_rl.hardware.core.stop_flag import StopFlag
from robot_rl.hardware.core.wording import one_line
from robot_rl.hardware.drivers.base import DriverError, Measurement
from robot_rl.hardware.protocol.messages import Code, Mode

HOLD = 500 * MS
"""How long a lost lease may stay untaken before the arm is stopped, ns."""
# A fault's text is part of every state and of refusals.
_MOST_TEXT = 400
# A lead that goes on is one event, not one for each tick.
_LEAD_AGAIN = 1000 * MS


class Supervisor:
    """Mode, latched fault, lease and motion, and what time does to them."""

    def __init__(
        self, motion: ArmMotion[Any], leases: Leases, events: EventLog, clock: Clock, rate: float
    ) -> None:
        self.motion = motion
        self.leases = leases
        self.events = events
        self.estop = StopFlag()
        self.mode = Mode.DISCONNECTED
        self.fault = ""
        self._clock = clock
        self._gap = int(STALE_TICKS * 1e9 / rate)
        self._last_tick: int | None = None
        self._hold_since = 0
        self._led = -_LEAD_AGAIN
        # By name, of those that the latched fault covers: each is one event.
        self._faults: set[str] = set()

    def require(self, cause: Cause) -> None:
        """The table has a row for it.

        Raises:
            Refusal: it has none.
        """
        modes.after(self.mode, cause, self.fault)

    def change(self, cause: Cause, who: str = "") -> None:
        """Go where the table says.

        Raises:
            Refusal: it has no such row.
        """
        following = modes.after(self.mode, cause, self.fault)
        if following is not self.mode:
            self.events.append("mode", f"{self.mode} -> {following} by {cause}", who)
            self.mode = following

    def latch(self, cause: Cause, name: str, text: str, who: str = "") -> None:
        """Stop the arm, end the lease, and stay in fault until an operator acknowledges it."""
        try:
            self.motion.disable()
        except DriverError as error:
            text = f"{text}; and it did not take the stop: {error}"
        text = one_line(text, _MOST_TEXT)
        lease = self.leases.end()
        if lease:
            self.events.append("lease", f"lease {lease.number} ends with the fault", lease.holder.name)
        if name == "stop" or name not in self._faults:
            self.events.append("stop" if name == "stop" else "fault", f"{name}: {text}", who)
        self._faults.add(name)
        self.fault = self.fault or f"{name}: {text}"
        self.change(cause, who)

    def stop(self, who: str, reason: str) -> None:
        """The software e-stop: whatever the mode is."""
        if self.mode is Mode.DISCONNECTED:
            self.events.append("stop", f"stop: {reason}; no arm is connected", who)
        else:
            self.latch(Cause.STOP, "stop", f"{who}: {reason}" if reason else who, who)

    def see_stops(self) -> None:
        """Take what the e-stop's thread has left."""
        while pulled := self.estop.take():
            self.stop(*pulled)

    def acknowledged(self, reason: str, who: str) -> None:
        """A person has looked at it, and the driver has recovered."""
        self.motion.acknowledge_gripper()
        self.events.append("acknowledged", f"{self.fault}: {reason}", who)
        self.change(Cause.ACKNOWLEDGE, who)
        self.fault = ""
        self._faults.clear()

    def begin_ticks(self) -> None:
        """The arm has been enabled: no tick was missed before."""
        self._last_tick = self._clock.now()

    def measure(self) -> Measurement | None:
        """Read the arm; None where that is a fault, which is latched."""
        try:
            return self.motion.measure(self._clock)
        except DriverError as error:
            self.latch_once("driver", str(error))
        except MeasurementFault as error:
            self.latch_once("measurement", str(error))
        return None

    def latch_once(self, name: str, text: str) -> None:
        """Latch what is found at every tick; it is one event until it is acknowledged."""
        # An arm in fault has been stopped already and may not be readable: no use in stopping it each tick.
        if self.mode is not Mode.FAULT or name not in self._faults:
            self.latch(Cause.FAULT, name, text)

    def expire(self, now: int) -> None:
        """End what has run out: a lease, or the time on hold."""
        lease = self.leases.expired(now)
        if lease:
            self.leases.end()
            self.motion.let_go()
            if lease.begun:
                self._hold_since = now
                self.events.append(
                    "lease", f"lease {lease.number} is lost: no valid command", lease.holder.name
                )
                self.change(Cause.LEASE_LOST, lease.holder.name)
            else:
                self.events.append("lease", f"lease {lease.number} lapses unused", lease.holder.name)
                self.change(Cause.LEASE_LAPSED, lease.holder.name)
        if self.mode is Mode.HOLD and now - self._hold_since > HOLD:
            self.latch(
                Cause.HOLD_OVER, "lease_lost", f"nobody took the lost lease within {HOLD // MS} ms of holding"
            )

    def begin_tick(self) -> Measurement | None:
        """First half of what is done once per period: measure. None where nothing can be done with it."""
        self.see_stops()
        if self.mode is Mode.DISCONNECTED:
            return None
        now = self._clock.now()
        late = now - self._last_tick if self._last_tick is not None else 0
        self._last_tick = now
        if late > self._gap and self.motion.enabled:
            # The arm has stood at its last setpoint meanwhile; to go on with the old speed would be a jump.
            self.motion.freeze()
            self.events.append("overrun", f"no tick for {late / MS:.0f} ms: the setpoint stands")
        measured = self.measure()
        if gripper_fault := self.motion.gripper_fault:
            self.latch_once("gripper", gripper_fault)
        return measured

    def end_tick(self, measured: Measurement | None) -> None:
        """The other half: let time act, move. Commands that came in between are followed already."""
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
                f"command {waypoint.seq} is dropped: {age:.1f} ms too old at its tick",
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
            self.events.append("limit", f"command {seq} is given up: the way to its goal goes beyond {limit}")
        elif any(name.startswith("lead_") for name in step.clipped):
            if now - self._led > _LEAD_AGAIN:
                limit = ", ".join(step.clipped)
                self.events.append("limit", f"the arm does not follow: {limit} holds the setpoint back")
            self._led = now
