"""Client of the robot's server. Every call ends within its time limit, with an answer or a named error."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Self

from robot_rl.hardware.clock import MS, Clock, MonotonicClock
from robot_rl.hardware.connection import (
    PROBE_WAIT,
    Connection,
    NoAnswer,
    NotAtHome,
    RequestRefused,
    RobotError,
    ServerChanged,
)
from robot_rl.hardware.protocol.clock_sync import Estimate
from robot_rl.hardware.protocol.endpoints import Address, parse
from robot_rl.hardware.protocol.listener import Listener
from robot_rl.hardware.protocol.messages import (
    Ack,
    AcknowledgeFault,
    AcquireLease,
    Arm,
    Code,
    Command,
    Disarm,
    Done,
    Event,
    Home,
    Kind,
    Pause,
    ReleaseLease,
    ResetScene,
    Resume,
    Role,
    SampleNow,
    State,
    Stop,
)
from robot_rl.hardware.protocol.security import ClientKeys
from robot_rl.hardware.settle_detector import SettleDetector
from robot_rl.hardware.spec import CommandMode, Latency, RobotSpec
from robot_rl.hardware.state_interpolation import interpolate_state

__all__ = [
    "CommandRefused",
    "NoAnswer",
    "RequestRefused",
    "RobotClient",
    "RobotError",
    "ServerChanged",
    "StaleState",
    "insist_on_stop",
]

_STOP_ATTEMPTS = 3


class StaleState(RobotError):
    """The newest state is older than the caller allows."""

    def __init__(self, age: float, text: str) -> None:
        super().__init__(text)
        self.age = age
        """Age of the newest state, s; infinite if there is none."""


class CommandRefused(RequestRefused):
    """The server refused a command."""


def insist_on_stop(stop: Callable[[str], object], reason: str) -> None:
    """Trigger the software e-stop; one that is not answered is sent again.

    Args:
        stop: sends it once, as `RobotClient.stop`.
        reason: shown with the fault.

    Raises:
        NoAnswer: if none of three attempts is answered.
    """
    for left in reversed(range(_STOP_ATTEMPTS)):
        try:
            stop(reason)
            return
        except NoAnswer:
            if not left:
                raise


class RobotClient:
    """Client of one robot server, for one thread.

    Used as a context manager: `with RobotClient("ipc:///run/user/1000/robot", "me") as robot: ...`.

    Unless stated otherwise, calls raise `NoAnswer` (also if there is no server), `ServerChanged` or
    `RequestRefused`; all are a `RobotError`.
    """

    def __init__(
        self,
        address: Address | str,
        name: str,
        role: Role = "observer",
        *,
        keys: ClientKeys | None = None,
        insecure: bool = False,
        timeout: float = 1.0,
        clock: Clock | None = None,
    ) -> None:
        """Connect; the handshake is done by the with statement.

        Args:
            address: address of the server.
            name: name of this client in the server's log; with keys, the key's name is used.
            role: role to ask for.
            keys: required if the server's address is on a network.
            insecure: use a network without keys.
            timeout: time limit for an answer, s.
            clock: this machine's monotonic clock.

        Raises:
            ValueError: if the address is invalid, or on a network without keys.
        """
        self.name, self.role, self.timeout = name, role, timeout
        self.lease_number = 0
        """Number of the lease taken last, 0 for none."""
        self._clock = clock or MonotonicClock()
        address = parse(address) if isinstance(address, str) else address
        self._connection = Connection(address, keys, insecure, timeout, self._clock)
        self._state: State | None = None
        self._history: Listener[State] | None = None

    def __enter__(self) -> Self:
        try:
            self._connection.handshake(self.name, self.role)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect; a lease that is held expires. Safe to call twice."""
        self._connection.close()

    # ---- facts about the server ----------------------------------------------------------------------------

    @property
    def spec(self) -> RobotSpec:
        """The robot's spec."""
        return self._connection.welcome.spec

    @property
    def latency(self) -> Latency:
        """The robot's latency, as far as its server knows it."""
        return self._connection.welcome.latency or Latency()

    @property
    def session(self) -> str:
        """Id of the server process, new after each start."""
        return self._connection.welcome.session

    @property
    def lease_ms(self) -> int:
        """Time after which a lease without a valid command is lost, ms."""
        return self._connection.welcome.lease_ms

    @property
    def late(self) -> int:
        """Number of answers dropped because they were late or damaged."""
        return self._connection.late

    def clock_offset(self) -> Estimate:
        """Offset of the server's clock from this machine's, now."""
        return self._connection.offset()

    def server_time(self) -> int:
        """Present time on the server's clock, ns."""
        return self._connection.server_time()

    def to_server(self, t: int) -> int:
        """Convert this machine's time to the server's clock, ns."""
        return self._connection.to_server(t)

    def keep_time(self) -> None:
        """Keep the clock offset up to date; for clients that send no commands for long. Waits up to 10 ms."""
        self._connection.keep_time(PROBE_WAIT)

    # ---- requests --------------------------------------------------------------------------------------

    def arm(self, spec_sha256: str = "") -> Done:
        """Hold the arm with torque. `spec_sha256`: hash of the robot that the caller was configured for."""
        sha256 = spec_sha256 or self._connection.welcome.spec_sha256
        return self._connection.ask(Done, Arm, spec_sha256=sha256)

    def disarm(self) -> Done:
        """Stop the arm and accept no commands."""
        return self._connection.ask(Done, Disarm)

    def acquire(self, kind: Kind, *, preempt: bool = False) -> int:
        """Take the lease; returns its number. The context manager `lease` also releases it."""
        self.lease_number = self._connection.ask(Done, AcquireLease, kind=kind, preempt=preempt).lease
        return self.lease_number

    def release(self) -> None:
        """Release the lease; the arm brakes and is held. No error if the lease has already ended."""
        number, self.lease_number = self.lease_number, 0
        if number:
            try:
                self._connection.ask(Done, ReleaseLease, lease=number)
            except RequestRefused as refusal:
                # The lease has already ended.
                if refusal.code not in (Code.NO_LEASE, Code.MODE, Code.FAULT):
                    raise

    @contextmanager
    def lease(self, kind: Kind, *, preempt: bool = False) -> Iterator[int]:
        """Hold the lease for a with block. Without a command every `lease_ms` it is lost."""
        number = self.acquire(kind, preempt=preempt)
        try:
            yield number
        except BaseException:
            # The error in the block matters more; otherwise the lease expires.
            with suppress(RobotError):
                self.release()
            raise
        self.release()

    def pause(self) -> Done:
        """Hold; commands are refused, the lease stays."""
        return self._connection.ask(Done, Pause)

    def resume(self) -> Done:
        """End a pause."""
        return self._connection.ask(Done, Resume)

    def reset_scene(self, start: int, timeout: float = 30.0) -> Done:
        """Reset a simulated scene to initial state `start`, with the arm disarmed.

        Args:
            start: index into the saved initial states of the server.
            timeout: time limit, s.
        """
        connection = self._connection
        deadline = connection.deadline(timeout)
        connection.await_connection(connection.ctrl, ResetScene, deadline)
        request = connection.stamp.request(ResetScene, start=start)
        return connection.exchange(connection.ctrl, request, Done, deadline)

    def acknowledge(self, reason: str) -> Done:
        """Acknowledge a fault, with a reason of 3 to 500 characters. Operators only."""
        return self._connection.ask(Done, AcknowledgeFault, reason=reason)

    def events(self, since: int = 0) -> list[Event]:
        """Events with a number above `since` that the server still has."""
        return self._connection.events(since)

    def sample(self) -> State:
        """Measure and return the state now instead of waiting for the next tick."""
        return self._connection.ask(State, SampleNow)

    def stop(self, reason: str = "") -> Done:
        """Software e-stop, on its own connection and served by its own thread."""
        return self._connection.ask(Done, Stop, socket=self._connection.estop, reason=reason[:500])

    def command(
        self,
        mode: CommandMode,
        data: Sequence[float],
        gripper: float | None = None,
        *,
        ttl_ms: int = 100,
        t_target: int = 0,
        obs_seq: int = 0,
        timeout: float | None = None,
    ) -> Ack:
        """Send a command under this client's lease.

        Its age counts from this call, also while it waits for a connection.

        Args:
            mode: meaning of `data`.
            data: see `Command`.
            gripper: opening in [0, 1]; None leaves it as it is.
            ttl_ms: age at which the server refuses it, ms.
            t_target: time at which it takes effect, on the server's clock, ns; 0 is at once.
            obs_seq: `seq` of the state from which it was computed.
            timeout: time limit for the answer, s; by default the client's.

        Returns:
            The goal that was applied, and the names of the limits that changed it.

        Raises:
            CommandRefused: if it is stale, out of order, without a lease, ...; the arm does not follow it.
            NoAnswer: if no answer came in time.
            ServerChanged: if the server was restarted: connect again.
        """
        connection, called = self._connection, self._clock.now()
        connection.keep_time()
        deadline = connection.deadline(timeout)
        connection.await_connection(connection.cmd, Command, deadline)
        request = connection.stamp.request(
            Command,
            lease=self.lease_number,
            mode=mode,
            data=tuple(float(value) for value in data),
            gripper=gripper,
            ttl_ms=ttl_ms,
            t_sent=connection.to_server(called),
            t_target=t_target,
            obs_seq=obs_seq,
        )
        try:
            return connection.exchange(connection.cmd, request, Ack, deadline)
        except RequestRefused as refusal:
            raise CommandRefused(refusal.code, refusal.reason) from None

    def begin_home(self) -> Done:
        """Start moving to the home position; repeat it within `lease_ms` to keep the lease."""
        return self._connection.ask(Done, Home, lease=self.lease_number)

    def home(self, timeout: float = 30.0, check: Callable[[], None] = lambda: None) -> State:
        """Move to the home position under the lease; returns the state there.

        Args:
            timeout: time limit, s.
            check: called at each state; an error of it ends the motion, since the lease is not renewed.

        Raises:
            RequestRefused: if no path inside the workspace was found.
            NotAtHome: if the arm was not at home within `timeout` [s].
        """
        connection = self._connection
        end = connection.deadline(timeout)
        begun, settled = 0, SettleDetector.at_home(self.spec)
        while self._clock.now() < end:
            done = self.begin_home()
            begun = begun or done.tm
            # Repeated three times per lease period.
            repeat_at = self._clock.now() + self.lease_ms * MS // 3
            while self._clock.now() < repeat_at:
                check()
                state = self.state(self.timeout)
                if state.tm > begun and settled.update(state):
                    return state
                connection.states.poll(self.lease_ms // 3)
        raise NotAtHome(f"the arm was not at home after {timeout:g} s")

    # ---- states ----------------------------------------------------------------------------------------

    def state(self, max_age: float = 0.1) -> State:
        """The newest state, measured at most `max_age` [s] ago.

        It waits up to `max_age` for one (up to the client's time limit for the first).

        Raises:
            StaleState: if there is none; the message says how old the newest is.
            ServerChanged: if another server publishes here.
        """
        connection = self._connection
        deadline = connection.deadline(min(max_age, self.timeout) if self._state else None)
        while True:
            self._state = connection.newest_state(self._state)
            age = math.inf
            if self._state is not None and self._state.t_sample:
                age = (connection.server_time() - self._state.t_sample) * 1e-9
                # A state from the future means a wrong clock or a damaged message.
                if abs(age) <= max_age:
                    return self._state
            left = deadline - self._clock.now()
            if left <= 0:
                raise StaleState(age, self._stale(age, max_age))
            connection.await_state(left)

    def keep_states(self, seconds: float = 1.0) -> None:
        """Start keeping the states of the last `seconds`, for `state_at`.

        Raises:
            StaleState: if no state arrives.
        """
        if self._history is None:
            self._history = self._connection.every_state(math.ceil(seconds * self.spec.rate) + 1)
        if not self._history.wait(0, self.timeout):
            raise StaleState(math.inf, f"no state has arrived from {self._connection.address}")

    def state_at(self, t: int, max_gap: float = 0.1, timeout: float | None = None) -> State:
        """The state at `t` on the server's clock [ns], interpolated; call `keep_states` first.

        Joint positions and velocities and the tool pose are interpolated; the other fields are those of the
        last state before `t`. Nothing is extrapolated: it waits until a state after `t` has arrived.

        Args:
            t: time of the state.
            max_gap: maximum time between the states around it, s.
            timeout: time limit, s; by default the client's.

        Raises:
            StaleState: if the state is not known; the message says why.
            ServerChanged: if another server publishes here.
        """
        assert self._history is not None, "keep_states comes first"
        deadline = self._connection.deadline(timeout)
        while True:
            count, states = self._history.kept()
            if states:
                self._connection.check_session(states[-1])
            if states and states[-1].t_sample >= t:
                break
            left = deadline - self._clock.now()
            if left <= 0:
                raise self._unknown(t, "no later state has arrived")
            self._history.wait(count, left * 1e-9)
        found = interpolate_state(states, t, round(max_gap * 1e9))
        if isinstance(found, str):
            raise self._unknown(t, found)
        return found

    def _unknown(self, t: int, why: str) -> StaleState:
        age = (self.server_time() - t) * 1e-9
        return StaleState(age, f"the state of {age * 1e3:.0f} ms ago is not known: {why}")

    def _stale(self, age: float, max_age: float) -> str:
        if self._state is None:
            return f"no state has arrived from {self._connection.address}"
        about = f"mode {self._state.mode}" + (f", {self._state.fault}" if self._state.fault else "")
        if math.isinf(age):
            return f"the arm has measured nothing yet ({about})"
        return f"the newest state is {age * 1e3:.0f} ms old, {max_age * 1e3:.0f} ms were allowed ({about})"
