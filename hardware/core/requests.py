"""Handles the requests that change the lease or the mode: arm, disarm, pause, stop, ..."""

from robot_rl.hardware.clock import Clock
from robot_rl.hardware.core import modes
from robot_rl.hardware.core.events import Refusal
from robot_rl.hardware.core.lease import Peer
from robot_rl.hardware.core.modes import Cause
from robot_rl.hardware.core.supervisor import Supervisor
from robot_rl.hardware.drivers.driver import Driver, DriverError, ResettableScene
from robot_rl.hardware.protocol import messages as m
from robot_rl.hardware.protocol.codec import Stamper
from robot_rl.hardware.protocol.messages import Code, Done, Mode


class Requests:
    """Each method carries out one request, or raises a `Refusal` and changes nothing.

    A driver error latches a fault, and the request is refused with it.
    """

    def __init__(
        self, supervisor: Supervisor, driver: Driver, sha256: str, clock: Clock, stamp: Stamper
    ) -> None:
        self._supervisor = supervisor
        self._motion = supervisor.motion
        self._leases = supervisor.leases
        self._events = supervisor.events
        self._driver = driver
        self._sha256 = sha256
        self._clock = clock
        self._stamp = stamp

    def arm(self, peer: Peer, message: m.Arm) -> Done:
        """Hold the arm with torque."""
        self._supervisor.check_transition(Cause.ARM)
        if message.spec_sha256 != self._sha256:
            raise Refusal(
                Code.SPEC, f"this robot's spec is {self._sha256[:12]}…, not {message.spec_sha256[:12]}…"
            )
        if self._supervisor.measure() is None:
            raise self._in_fault("arm")
        try:
            self._motion.enable()
        except DriverError as error:
            self._supervisor.latch(Cause.FAULT, "driver", str(error), peer.name)
            raise self._in_fault("arm") from error
        # Measured again: somebody may have moved the arm while it was enabled.
        measured = self._supervisor.measure()
        if measured is None:
            raise self._in_fault("arm")
        self._motion.hold(measured)
        self._supervisor.reset_tick_timer()
        self._supervisor.transition(Cause.ARM, peer.name)
        # A stop may have arrived before the arm was enabled: apply it to the enabled arm.
        self._supervisor.process_stops()
        if self._supervisor.mode is Mode.FAULT:
            raise self._in_fault("arm")
        return self._done(message)

    def disarm(self, peer: Peer, message: m.Disarm) -> Done:
        """Stop the arm. Allowed to the lease's holder and operators, or to all if there is no lease."""
        self._supervisor.check_transition(Cause.DISARM)
        if self._leases.current is not None:
            self._leases.require_control(peer, "disarm")
        try:
            self._motion.disable()
        except DriverError as error:
            self._supervisor.latch(Cause.FAULT, "driver", str(error), peer.name)
            raise self._in_fault("disarm") from error
        lease = self._leases.end()
        if lease:
            self._events.append(
                "lease", f"lease {lease.number} ends as the arm is disarmed", lease.holder.name
            )
        self._supervisor.transition(Cause.DISARM, peer.name)
        return self._done(message)

    def reset_scene(self, peer: Peer, message: m.ResetScene) -> Done:
        """Reset a simulated scene. It blocks the control loop: no tick runs meanwhile."""
        self._supervisor.check_transition(Cause.RESET_SCENE)
        if not isinstance(self._driver, ResettableScene):
            raise Refusal(Code.SCENE, "this robot has no simulated scene to reset: prepare it by hand")
        try:
            self._driver.reset(message.start)
        except ValueError as error:
            raise Refusal(Code.SCENE, str(error)) from error
        except DriverError as error:
            self._supervisor.latch(Cause.FAULT, "driver", str(error), peer.name)
            raise self._in_fault("reset_scene") from error
        self._events.append("scene", f"the scene was reset to start {message.start}", peer.name)
        self._supervisor.transition(Cause.RESET_SCENE, peer.name)
        return self._done(message)

    def acquire(self, peer: Peer, message: m.AcquireLease) -> Done:
        """Take the lease; the arm brakes until the first command."""
        self._supervisor.check_transition(Cause.LEASE_TAKEN)
        paused = self._supervisor.mode is Mode.PAUSED
        lease, old = self._leases.grant(peer, message.kind, message.preempt, self._clock.now(), paused)
        self._motion.clear_goals()
        text = f"lease {lease.number} ({lease.kind}) to {peer.name}"
        if old:
            text += f", taken from lease {old.number} of {old.holder.name}"
        self._events.append("lease", text, peer.name)
        self._supervisor.transition(Cause.LEASE_TAKEN, peer.name)
        return self._done(message, lease.number)

    def release(self, peer: Peer, message: m.ReleaseLease) -> Done:
        """Give the lease back; the arm brakes and is held."""
        self._supervisor.check_transition(Cause.LEASE_RELEASED)
        lease = self._leases.held(peer, message.lease)
        self._leases.end()
        self._motion.clear_goals()
        self._events.append("lease", f"lease {lease.number} was released", peer.name)
        self._supervisor.transition(Cause.LEASE_RELEASED, peer.name)
        return self._done(message)

    def pause(self, peer: Peer, message: m.Pause) -> Done:
        """Brake and hold; the lease does not expire."""
        self._supervisor.check_transition(Cause.PAUSE)
        self._leases.require_control(peer, "pause")
        self._leases.suspend()
        self._motion.clear_goals()
        self._supervisor.transition(Cause.PAUSE, peer.name)
        return self._done(message)

    def resume(self, peer: Peer, message: m.Resume) -> Done:
        """Accept commands again, the first one with the jump check."""
        self._supervisor.check_transition(Cause.RESUME)
        self._leases.require_control(peer, "resume")
        self._leases.resume(self._clock.now())
        self._supervisor.transition(Cause.RESUME, peer.name)
        return self._done(message)

    def acknowledge(self, peer: Peer, message: m.AcknowledgeFault) -> Done:
        """Acknowledge the fault and let the arm recover."""
        self._supervisor.check_transition(Cause.ACKNOWLEDGE)
        try:
            self._driver.recover()
        except DriverError as error:
            raise Refusal(Code.FAULT, f"the arm does not recover: {error}") from error
        self._supervisor.clear_fault(message.reason, peer.name)
        return self._done(message)

    def stop(self, peer: Peer, message: m.Stop) -> Done:
        """Software e-stop."""
        self._supervisor.stop(peer.name, message.reason)
        return self._done(message)

    def _in_fault(self, what: str) -> Refusal:
        return modes.mode_refusal(Mode.FAULT, what, self._supervisor.fault)

    def _done(self, message: m.Message, lease: int = 0) -> Done:
        return self._stamp(Done, id=message.id, mode=self._supervisor.mode, lease=lease)
