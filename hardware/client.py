"""A client of the robot's server. Every call ends within its time limit, with an answer or a named error."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from robot_rl.hardware.clock import MS, Clock, MonotonicClock
from robot_rl.hardware.connection import Connection, NoAnswer, RequestRefused, RobotError, ServerChanged
from robot_rl.hardware.history import state_between
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
from robot_rl.hardware.spec import CommandMode, Latency, RobotSpec

__all__ = [
    "CommandRefused",
    "NoAnswer",
    "RequestRefused",
    "RobotClient",
    "RobotError",
    "ServerChanged",
    "StaleState",
    "Standing",
]

REST = 0.01
"""Below this speed a joint is at rest, rad/s."""
_STANDS = 10
"""States with the same setpoint after which the arm has come to where it goes."""
_THERE = 1e-6
"""A setpoint that is as near is there, rad."""


class StaleState(RobotError):
    """The newest state is older than what was asked for."""

    def __init__(self, age: float, text: str) -> None:
        super().__init__(text)
        self.age = age
        """s; infinite where there was no state at all."""


class CommandRefused(RequestRefused):
    """The request was a command."""


class Standing:
    """Whether an arm has come to where it goes, by its states."""

    def __init__(self, place: Sequence[float] | None = None) -> None:
        """Where it stands at `place` [n], its setpoint's; at any, if there is none."""
        self._place = place
        self._last: State | None = None
        self._stood = 0

    def sees(self, state: State) -> bool:
        """True once it stands, with this state, which may be the same as before."""
        last = self._last
        if last is None or state.seq > last.seq:
            self._stood = self._stood + 1 if last and state.setpoint == last.setpoint else 0
            self._last = state
        if self._place is not None and (
            not state.setpoint or math.dist(self._place, state.setpoint) > _THERE
        ):
            return False
        return self._stood >= _STANDS and max(map(abs, state.dq)) < REST

    @classmethod
    def at_home(cls, spec: RobotSpec) -> Self:
        """At rest, as far as the spec says where the setpoint is there."""
        return cls(spec.home if spec.space == "joint" else None)


class RobotClient:
    """One connection, for one thread: `with RobotClient("ipc:///run/user/1000/robot", "me") as robot: …`.

    Where nothing else is said, calls raise `NoAnswer` (also if there is no server), `ServerChanged` or
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
        """Connect; the with statement says hello.

        Args:
            address: where the server is.
            name: for its log; with keys, theirs counts.
            role: what this client wants to be.
            keys: required where the server's address is on a network.
            insecure: use a network without keys.
            timeout: longest time for an answer, s.
            clock: this machine's monotonic one.

        Raises:
            ValueError: an address that is none, or a network without keys.
        """
        self.name, self.role, self.timeout = name, role, timeout
        self.lease_number = 0
        """Of the lease that this client has taken last, 0 for none."""
        self._clock = clock or MonotonicClock()
        address = parse(address) if isinstance(address, str) else address
        self._line = Connection(address, keys, insecure, timeout, self._clock)
        self._state: State | None = None
        self._history: Listener[State] | None = None

    def __enter__(self) -> Self:
        try:
            self._line.greet(self.name, self.role)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; a lease that is held runs out. Safe to call twice."""
        self._line.close()

    # ---- what the server is ----------------------------------------------------------------------------

    @property
    def spec(self) -> RobotSpec:
        """The robot's."""
        return self._line.welcome.spec

    @property
    def latency(self) -> Latency:
        """How late the robot is, as far as its server knows."""
        return self._line.welcome.latency or Latency()

    @property
    def session(self) -> str:
        """The server's, which is another one after each start."""
        return self._line.welcome.session

    @property
    def lease_ms(self) -> int:
        """How long a lease lasts without a valid command."""
        return self._line.welcome.lease_ms

    @property
    def late(self) -> int:
        """Answers that came too late, or damaged, and were dropped."""
        return self._line.late

    def clock_offset(self) -> Estimate:
        """How far the server's clock is ahead of this machine's now."""
        return self._line.offset()

    def server_time(self) -> int:
        """Now on the server's clock, ns."""
        return self._line.server_time()

    def to_server(self, t: int) -> int:
        """This machine's time on the server's clock, ns."""
        return self._line.to_server(t)

    def keep_time(self) -> None:
        """Follow the server's clock, at no cost; for who looks for long and commands nothing."""
        self._line.keep_time()

    # ---- requests --------------------------------------------------------------------------------------

    def arm(self, spec_sha256: str = "") -> Done:
        """Hold the arm with torque. `spec_sha256`: of the robot that one was set up for."""
        return self._line.ask(Done, Arm, spec_sha256=spec_sha256 or self._line.welcome.spec_sha256)

    def disarm(self) -> Done:
        """Come to rest and take no commands."""
        return self._line.ask(Done, Disarm)

    def acquire(self, kind: Kind, *, preempt: bool = False) -> int:
        """Become the one who commands; returns the lease's number. `lease` gives it back by itself."""
        self.lease_number = self._line.ask(Done, AcquireLease, kind=kind, preempt=preempt).lease
        return self.lease_number

    def release(self) -> None:
        """Give the lease back; the arm brakes and is held. Nothing happens to one that has ended."""
        number, self.lease_number = self.lease_number, 0
        if number:
            try:
                self._line.ask(Done, ReleaseLease, lease=number)
            except RequestRefused as refusal:
                # It has ended already, which is what was wanted.
                if refusal.code not in (Code.NO_LEASE, Code.MODE, Code.FAULT):
                    raise

    @contextmanager
    def lease(self, kind: Kind, *, preempt: bool = False) -> Iterator[int]:
        """Have the lease for the length of a block. Without a command every `lease_ms` it is lost."""
        number = self.acquire(kind, preempt=preempt)
        try:
            yield number
        except BaseException:
            # What happened in the block matters more; at the worst the lease runs out.
            with suppress(RobotError):
                self.release()
            raise
        self.release()

    def pause(self) -> Done:
        """Hold; commands are refused, the lease stays."""
        return self._line.ask(Done, Pause)

    def resume(self) -> Done:
        """End a pause."""
        return self._line.ask(Done, Resume)

    def reset_scene(self, start: int, timeout: float = 30.0) -> Done:
        """Let a simulated scene begin anew at its beginning number `start`, with the arm disarmed.

        Args:
            start: index into the saved states that the server was given.
            timeout: longest time for it, s.
        """
        line = self._line
        deadline = line.deadline(timeout)
        line.await_connection(line.ctrl, ResetScene, deadline)
        return line.exchange(line.ctrl, line.stamp.request(ResetScene, start=start), Done, deadline)

    def acknowledge(self, reason: str) -> Done:
        """A person has looked at the fault; the reason has 3 to 500 characters. Operators only."""
        return self._line.ask(Done, AcknowledgeFault, reason=reason)

    def events(self, since: int = 0) -> list[Event]:
        """All events that the server still has with a number above `since`."""
        return self._line.events(since)

    def sample(self) -> State:
        """The state as it is now, not as it was at the last tick."""
        return self._line.ask(State, SampleNow)

    def stop(self, reason: str = "") -> Done:
        """The software e-stop: on its own connection, heard whatever the server is doing."""
        return self._line.ask(Done, Stop, socket=self._line.estop, reason=reason[:500])

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
        """Send the arm somewhere, under the lease that this client has.

        Args:
            mode: what `data` is.
            data: see `Command`.
            gripper: opening in [0, 1]; None leaves it.
            ttl_ms: age at which it is worthless.
            t_target: when it shall be acted on, on the server's clock, ns; 0 is at once.
            obs_seq: number of the state from which it was computed.
            timeout: longest time for the answer, s; by default the client's.

        Returns:
            What was applied, and the names of the limits that changed it.

        Raises:
            CommandRefused: stale, out of order, without a lease …: the arm does as before.
            NoAnswer: none in time.
            ServerChanged: connect anew.
        """
        line = self._line
        line.keep_time()
        deadline = line.deadline(timeout)
        line.await_connection(line.cmd, Command, deadline)
        request = line.stamp.request(
            Command,
            lease=self.lease_number,
            mode=mode,
            data=tuple(float(value) for value in data),
            gripper=gripper,
            ttl_ms=ttl_ms,
            t_sent=line.server_time(),
            t_target=t_target,
            obs_seq=obs_seq,
        )
        try:
            return line.exchange(line.cmd, request, Ack, deadline)
        except RequestRefused as refusal:
            raise CommandRefused(refusal.code, refusal.reason) from None

    def begin_home(self) -> Done:
        """Let the arm go to rest within the limits; whoever wants it to go on asks again within the lease."""
        return self._line.ask(Done, Home, lease=self.lease_number)

    def home(self, timeout: float = 30.0) -> State:
        """Move to rest within the limits, under the lease; returns the state there.

        Raises:
            RequestRefused: no way there is free of the workspace's faces.
            NoAnswer: the arm was not there within `timeout` [s].
        """
        line = self._line
        end = line.deadline(timeout)
        begun, standing = 0, Standing.at_home(self.spec)
        while self._clock.now() < end:
            done = self.begin_home()
            begun = begun or done.tm
            # Repeated three times within a lease.
            again = self._clock.now() + self.lease_ms * MS // 3
            while self._clock.now() < again:
                state = self.state(self.timeout)
                if state.tm > begun and standing.sees(state):
                    return state
                line.states.poll(self.lease_ms // 3)
        raise NoAnswer(f"the arm was not at home after {timeout:g} s")

    # ---- states ----------------------------------------------------------------------------------------

    def state(self, max_age: float = 0.1) -> State:
        """The newest state, measured at most `max_age` [s] ago; waits so long for one, for the first longer.

        Raises:
            StaleState: there is none so new; the message says how old the newest is.
            ServerChanged: another server publishes here.
        """
        line = self._line
        deadline = line.deadline(min(max_age, self.timeout) if self._state else None)
        while True:
            self._state = line.newest_state(self._state)
            age = math.inf
            if self._state is not None and self._state.t_sample:
                age = (line.server_time() - self._state.t_sample) * 1e-9
                # One from the future is a clock that is wrong, or damage.
                if abs(age) <= max_age:
                    return self._state
            left = deadline - self._clock.now()
            if left <= 0:
                raise StaleState(age, self._stale(age, max_age))
            line.await_state(left)

    def keep_states(self, seconds: float = 1.0) -> None:
        """Keep all states of so long, from now on: `state_at` knows the moments in between.

        Raises:
            StaleState: none comes.
        """
        if self._history is None:
            self._history = self._line.every_state(math.ceil(seconds * self.spec.rate) + 1)
        if not self._history.wait(0, self.timeout):
            raise StaleState(math.inf, f"no state has come from {self._line.address}")

    def state_at(self, t: int, max_gap: float = 0.1, timeout: float | None = None) -> State:
        """The state at `t` on the server's clock [ns], interpolated; `keep_states` comes first.

        Joints, their speeds and the tool point are those of that moment; all else is of the newest state
        until then. Nothing is extrapolated: a moment that is not over is waited for.

        Args:
            t: the moment.
            max_gap: longest time between the states around it, s.
            timeout: longest time to wait, s; by default the client's.

        Raises:
            StaleState: no states are known around it; the message says why.
            ServerChanged: another server publishes here.
        """
        assert self._history is not None, "keep_states comes first"
        deadline = self._line.deadline(timeout)
        while True:
            count, states = self._history.kept()
            if states:
                self._line.check_session(states[-1])
            if states and states[-1].t_sample >= t:
                break
            left = deadline - self._clock.now()
            if left <= 0:
                raise self._unknown(t, "no state has come since")
            self._history.wait(count, left * 1e-9)
        found = state_between(states, t, round(max_gap * 1e9))
        if isinstance(found, str):
            raise self._unknown(t, found)
        return found

    def _unknown(self, t: int, why: str) -> StaleState:
        age = (self.server_time() - t) * 1e-9
        return StaleState(age, f"the state of {age * 1e3:.0f} ms ago is not known: {why}")

    def _stale(self, age: float, max_age: float) -> str:
        if self._state is None:
            return f"no state has come from {self._line.address}"
        about = f"mode {self._state.mode}" + (f", {self._state.fault}" if self._state.fault else "")
        if math.isinf(age):
            return f"the arm has measured nothing yet ({about})"
        return f"the newest state is {age * 1e3:.0f} ms old, {max_age * 1e3:.0f} ms were allowed ({about})"
