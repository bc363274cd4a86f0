"""Requests that change who commands and what mode the arm is in."""

from robot_rl.hardware.clock import Clock
from robot_rl.hardware.core import modes
from robot_rl.hardware.core.modes import Cause
from robot_rl.hardware.core.peer import Peer
from robot_rl.hardware.core.refusal import Refusal
from robot_rl.hardware.core.supervisor import Supervisor
from robot_rl.hardware.drivers.base import Driver, DriverError, ResettableScene
from robot_rl.hardware.protocol import messages as m
from robot_rl.hardware.protocol.codec import Stamper
from robot_rl.hardware.protocol.messages import Code, Done, Mode


class Requests:
    """Each method carries out one, or raises a `Refusal` and leaves everything as it was.

    What fails in the arm itself latches a fault, and is refused with it.
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
        self._supervisor.require(Cause.ARM)
        if message.spec_sha256 != self._sha256:
            raise Refusal(
                Code.SPEC, f"this robot's spec is {self._sha256[:12]}…, not {message.spec_sha256[:12]}…"
            )
        measured = self._supervisor.measure()
        if measured is None:
            raise self._in_fault("arm")
        try:
            self._motion.enable(measured)
        except DriverError as error:
            self._supervisor.latch(Cause.FAULT, "driver", str(error), peer.name)
            raise self._in_fault("arm") from error
        self._supervisor.begin_ticks()
        self._supervisor.change(Cause.ARM, peer.name)
        # A stop that came in between has stopped an arm that was enabled again after it.
        self._supervisor.see_stops()
        if self._supervisor.mode is Mode.FAULT:
            raise self._in_fault("arm")
        return self._done(message)

    def disarm(self, peer: Peer, message: m.Disarm) -> Done:
        """Bring the arm to rest in its own way; holders and operators may, and all while nobody holds."""
        self._supervisor.require(Cause.DISARM)
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
        self._supervisor.change(Cause.DISARM, peer.name)
        return self._done(message)

    def reset_scene(self, peer: Peer, message: m.ResetScene) -> Done:
        """Let a simulated scene begin anew; no tick comes in between, however long it takes."""
        self._supervisor.require(Cause.RESET_SCENE)
        if not isinstance(self._driver, ResettableScene):
            raise Refusal(Code.SCENE, "this robot has no scene that could begin anew: prepare it by hand")
        try:
            self._driver.reset(message.start)
        except ValueError as error:
            raise Refusal(Code.SCENE, str(error)) from error
        except DriverError as error:
            self._supervisor.latch(Cause.FAULT, "driver", str(error), peer.name)
            raise self._in_fault("reset_scene") from error
        self._events.append("scene", f"the scene begins anew: start {message.start}", peer.name)
        self._supervisor.change(Cause.RESET_SCENE, peer.name)
        return self._done(message)

    def acquire(self, peer: Peer, message: m.AcquireLease) -> Done:
        """Become the one who commands; the arm brakes until the first command."""
        self._supervisor.require(Cause.LEASE_TAKEN)
        paused = self._supervisor.mode is Mode.PAUSED
        lease, old = self._leases.grant(peer, message.kind, message.preempt, self._clock.now(), paused)
        self._motion.let_go()
        text = f"lease {lease.number} ({lease.kind}) to {peer.name}"
        if old:
            text += f", taken from lease {old.number} of {old.holder.name}"
        self._events.append("lease", text, peer.name)
        self._supervisor.change(Cause.LEASE_TAKEN, peer.name)
        return self._done(message, lease.number)

    def release(self, peer: Peer, message: m.ReleaseLease) -> Done:
        """Give the lease back; the arm brakes and is held."""
        self._supervisor.require(Cause.LEASE_RELEASED)
        lease = self._leases.held(peer, message.lease)
        self._leases.end()
        self._motion.let_go()
        self._events.append("lease", f"lease {lease.number} is released", peer.name)
        self._supervisor.change(Cause.LEASE_RELEASED, peer.name)
        return self._done(message)

    def pause(self, peer: Peer, message: m.Pause) -> Done:
        """Brake and hold; the lease waits."""
        self._supervisor.require(Cause.PAUSE)
        self._leases.require_control(peer, "pause")
        self._leases.suspend()
        self._motion.let_go()
        self._supervisor.change(Cause.PAUSE, peer.name)
        return self._done(message)

    def resume(self, peer: Peer, message: m.Resume) -> Done:
        """Take commands again, the first one under the jump guard."""
        self._supervisor.require(Cause.RESUME)
        self._leases.require_control(peer, "resume")
        self._leases.resume(self._clock.now())
        self._supervisor.change(Cause.RESUME, peer.name)
        return self._done(message)

    def acknowledge(self, peer: Peer, message: m.AcknowledgeFault) -> Done:
        """A person has looked at it: let the arm recover."""
        self._supervisor.require(Cause.ACKNOWLEDGE)
        try:
            self._driver.recover()
        except DriverError as error:
            raise Refusal(Code.FAULT, f"the arm does not recover: {error}") from error
        self._supervisor.acknowledged(message.reason, peer.name)
        return self._done(message)

    def stop(self, peer: Peer, message: m.Stop) -> Done:
        """The software e-stop."""
        self._supervisor.stop(peer.name, message.reason)
        return self._done(message)

    def _in_fault(self, what: str) -> Refusal:
        return modes.refused_in(Mode.FAULT, what, self._supervisor.fault)

    def _done(self, message: m.Message, lease: int = 0) -> Done:
        return self._stamp(Done, id=message.id, mode=self._supervisor.mode, lease=lease)
