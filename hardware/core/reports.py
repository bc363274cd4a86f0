"""What the core tells: who it is, what has happened, how the arm is."""

from collections.abc import Mapping

from hardware.clock import Clock
from hardware.core.arm_motion import GripperMailbox
from hardware.core.peer import Peer
from hardware.core.refusal import Refusal
from hardware.core.supervisor import Supervisor
from hardware.drivers.base import Array
from hardware.protocol import messages as m
from hardware.protocol.codec import Stamper
from hardware.protocol.messages import PROTOCOL, Code, Mode, State
from hardware.spec import RobotSpec

_RANK: Mapping[m.Role, int] = {"observer": 0, "policy": 1, "operator": 2}
# Bytes of the events in one answer; a frame may have 64 KiB. The rest is asked for again.
_EVENTS_SIZE = 48_000


class Reports:
    """Requests that change nothing, and the state of every tick."""

    def __init__(
        self,
        supervisor: Supervisor,
        spec: RobotSpec,
        lease_ms: int,
        boot_id: str,
        gripper: GripperMailbox | None,
        clock: Clock,
        stamp: Stamper,
    ) -> None:
        self._supervisor = supervisor
        self._spec = spec
        self._sha256 = spec.sha256
        self._lease_ms = lease_ms
        self._boot_id = boot_id
        self._gripper = gripper
        self._clock = clock
        self._stamp = stamp
        # Answers do not count among the published states: whoever records those sees a gap only where one is.
        self._stamp_answer = Stamper(stamp.src, clock)
        self.loop: m.Loop | None = None

    def hello(self, peer: Peer, message: m.Hello) -> m.Welcome:
        """Greet a client in the role that it asks for.

        Raises:
            Refusal: VERSION, or ROLE where its key allows less.
        """
        if message.protocol[0] != PROTOCOL[0]:
            raise Refusal(
                Code.VERSION, f"this server speaks protocol {PROTOCOL[0]}, the client {message.protocol[0]}"
            )
        if _RANK[message.role] > _RANK[peer.role]:
            raise Refusal(Code.ROLE, f"{peer.name} may be {peer.role}, not {message.role}")
        return self._welcome(message, message.role)

    def spec(self, peer: Peer, message: m.GetSpec) -> m.Welcome:
        """The robot's spec."""
        return self._welcome(message, peer.role)

    def time_sync(self, peer: Peer, message: m.TimeSync) -> m.TimeSyncReply:
        """Two readings of the server's clock."""
        now = self._clock.now()
        return self._stamp(m.TimeSyncReply, id=message.id, t0=message.tm, t1=now)

    def events(self, peer: Peer, message: m.EventsSince) -> m.Events:
        """The next events; whoever has got some asks again until there are none."""
        log = self._supervisor.events
        events = log.since_within(message.after, _EVENTS_SIZE)
        return self._stamp(m.Events, id=message.id, events=events, oldest=log.oldest)

    def sample(self, peer: Peer, message: m.SampleNow) -> State:
        """The state as of now."""
        if self._supervisor.mode is not Mode.DISCONNECTED:
            self._supervisor.measure()
        return self._state(self._stamp_answer, message.id)

    def state(self) -> State:
        """What is published: with the newest measurement that made sense."""
        return self._state(self._stamp, 0)

    def _state(self, stamp: Stamper, request: int) -> State:
        supervisor, motion = self._supervisor, self._supervisor.motion
        lease = supervisor.leases.current
        measured = motion.measured
        common = {
            "id": request,
            "setpoint": motion.setpoint,
            "goal_seq": motion.goal_seq,
            "mode": supervisor.mode,
            "fault": supervisor.fault,
            "lease_holder": lease.holder.name if lease else "",
            "gripper": self._gripper.latest() if self._gripper else None,
            "loop": self.loop,
        }
        if measured is None:
            return stamp(State, t_sample=0, q=(), dq=(), position=(), quaternion=(), **common)
        return stamp(
            State,
            t_sample=measured.t,
            q=_numbers(measured.q),
            dq=_numbers(measured.dq),
            tau=_numbers(measured.tau),
            position=_numbers(measured.pose.position),
            quaternion=_numbers(measured.pose.quaternion),
            wrench=_numbers(measured.wrench),
            sensors={name: _numbers(values) for name, values in measured.sensors.items()},
            **common,
        )

    def _welcome(self, message: m.Message, role: m.Role) -> m.Welcome:
        return self._stamp(
            m.Welcome,
            id=message.id,
            protocol=PROTOCOL,
            session=self._stamp.src,
            boot_id=self._boot_id,
            spec=self._spec,
            spec_sha256=self._sha256,
            lease_ms=self._lease_ms,
            role=role,
        )


def _numbers(array: Array) -> tuple[float, ...]:
    return tuple(array.tolist())
