"""Answers the queries (spec, events, clock, state) and builds the published state."""

from collections.abc import Mapping

from robot_rl.hardware.clock import Clock
from robot_rl.hardware.core.arm_motion import GripperMailbox
from robot_rl.hardware.core.events import Refusal
from robot_rl.hardware.core.lease import Peer
from robot_rl.hardware.core.supervisor import Supervisor
from robot_rl.hardware.drivers.driver import Array
from robot_rl.hardware.protocol import messages as m
from robot_rl.hardware.protocol.codec import Stamper
from robot_rl.hardware.protocol.messages import PROTOCOL, Code, Mode, State
from robot_rl.hardware.spec import Latency, RobotSpec

_RANK: Mapping[m.Role, int] = {"observer": 0, "policy": 1, "operator": 2}
# Bytes of events in one answer; a frame may have 64 KiB. The client asks again for the rest.
_EVENTS_SIZE = 48_000


class Reports:
    """Handles the requests that change nothing, and builds the state of every tick."""

    def __init__(
        self,
        supervisor: Supervisor,
        spec: RobotSpec,
        lease_ms: int,
        boot_id: str,
        latency: Latency | None,
        gripper: GripperMailbox | None,
        clock: Clock,
        stamp: Stamper,
    ) -> None:
        self._supervisor = supervisor
        self._spec = spec
        self._sha256 = spec.sha256
        self._lease_ms = lease_ms
        self._boot_id = boot_id
        self._latency = latency
        self._gripper = gripper
        self._clock = clock
        self._stamp = stamp
        # Answers have their own numbering: a recorder finds lost published states by gaps in `seq`.
        self._stamp_answer = Stamper(stamp.src, clock)
        self.loop: m.Loop | None = None

    def hello(self, peer: Peer, message: m.Hello) -> m.Welcome:
        """Handshake: accept a client in the role that it asks for.

        Raises:
            Refusal: VERSION, or ROLE if its key does not allow the role.
        """
        if message.protocol[0] != PROTOCOL[0]:
            raise Refusal(
                Code.VERSION, f"this server speaks protocol {PROTOCOL[0]}, the client {message.protocol[0]}"
            )
        if _RANK[message.role] > _RANK[peer.role]:
            raise Refusal(Code.ROLE, f"{peer.name} may be {peer.role}, not {message.role}")
        knows_latency = message.protocol >= (1, 1)
        return self._welcome(message, message.role, self._latency if knows_latency else None)

    def spec(self, peer: Peer, message: m.GetSpec) -> m.Welcome:
        """The robot's spec."""
        return self._welcome(message, peer.role)

    def time_sync(self, peer: Peer, message: m.TimeSync) -> m.TimeSyncReply:
        """Answer with two readings of the server's clock."""
        now = self._clock.now()
        return self._stamp(m.TimeSyncReply, id=message.id, t0=message.tm, t1=now)

    def events(self, peer: Peer, message: m.EventsSince) -> m.Events:
        """The next events that fit into one answer; the client asks again until there are none."""
        log = self._supervisor.events
        events = log.since_within(message.after, _EVENTS_SIZE)
        return self._stamp(m.Events, id=message.id, events=events, oldest=log.oldest)

    def sample(self, peer: Peer, message: m.SampleNow) -> State:
        """The state as of now."""
        if self._supervisor.mode is not Mode.DISCONNECTED:
            self._supervisor.measure()
        return self._state(self._stamp_answer, message.id)

    def commanded(self, peer: Peer, command: m.Command, answer: m.ServerMessage) -> m.Commanded:
        """The command and its result, published for recorders."""
        lease = self._supervisor.leases.current
        ack = answer if isinstance(answer, m.Ack) else None
        return self._stamp(
            m.Commanded,
            who=peer.name,
            kind=lease.kind if lease and lease.holder.identity == peer.identity else None,
            command=command.seq,
            lease=command.lease,
            mode=command.mode,
            data=command.data,
            gripper=command.gripper,
            t_sent=command.t_sent,
            t_target=command.t_target,
            obs_seq=command.obs_seq,
            applied=ack.applied if ack else (),
            clipped=ack.clipped if ack else (),
            t_applied=ack.t_applied if ack else 0,
            code=answer.code if isinstance(answer, m.Refused) else None,
        )

    def state(self) -> State:
        """The state to publish, with the newest valid measurement."""
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

    def _welcome(self, message: m.Message, role: m.Role, latency: Latency | None = None) -> m.Welcome:
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
            latency=latency,
        )


def _numbers(array: Array) -> tuple[float, ...]:
    return tuple(array.tolist())
