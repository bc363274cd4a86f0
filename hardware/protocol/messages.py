"""Every message of protocol 1, as typed msgpack maps tagged by `t`.

A decoder made from `ClientMessage` or `ServerMessage` validates names, types and ranges at C speed;
anything else is an error. No message can make the receiver run code.
"""

from enum import StrEnum
from typing import Annotated, Literal

import msgspec

from robot_rl.hardware.spec import MAX_JOINTS, MAX_READING, CommandMode, Latency, RobotSpec

PROTOCOL = (1, 1)
"""Major, minor. Peers with another major version are refused."""
HORIZON_MS = 2000
"""Maximum time by which a command's `t_target` may lie in the future, ms."""

Role = Literal["observer", "policy", "operator"]
Kind = Literal["policy", "human", "script"]
"""Source of the commands under a lease."""

Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Name = Annotated[str, msgspec.Meta(max_length=128)]
Vector = Annotated[tuple[float, ...], msgspec.Meta(max_length=MAX_JOINTS)]
Reading = Annotated[tuple[float, ...], msgspec.Meta(max_length=MAX_READING)]
"""Values of a sensor."""


class Mode(StrEnum):
    """Mode of the arm; the transition table is in hardware/core/modes.py."""

    DISCONNECTED = "disconnected"
    IDLE = "idle"
    ARMED = "armed"
    POLICY = "policy"
    HUMAN = "human"
    SCRIPT = "script"
    PAUSED = "paused"
    HOLD = "hold"
    FAULT = "fault"


class Code(StrEnum):
    """Reason of a refusal."""

    STALE = "stale"
    NO_LEASE = "no_lease"
    BAD_SEQ = "bad_seq"
    NAN = "nan"
    SHAPE = "shape"
    LIMIT = "limit"
    JUMP = "jump"
    UNREACHABLE = "unreachable"
    MODE = "mode"
    FAULT = "fault"
    ROLE = "role"
    VERSION = "version"
    SPEC = "spec"
    TOO_BIG = "too_big"
    MALFORMED = "malformed"
    BUSY = "busy"
    SCENE = "scene"


class Message(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="t", omit_defaults=True
):
    """Envelope of all messages."""

    src: Name
    """Id of the sending process, a uuid."""
    seq: Natural
    """Counts up per sender and kind of message."""
    tm: Natural
    """Sender's monotonic clock, ns."""
    tw: Natural = 0
    """Wall clock, ns; for people."""
    id: Natural = 0
    """Id of a request; its answer carries the same."""


# ---- client to server -------------------------------------------------------------------------------


class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """Handshake: first message of a client."""

    protocol: tuple[int, int]
    name: Name
    role: Role
    """Requested role; refused if the client's key does not allow it."""


class TimeSync(Message, frozen=True, kw_only=True, tag="time_sync"):
    """Clock probe; `tm` is t0."""


class AcquireLease(Message, frozen=True, kw_only=True, tag="acquire_lease"):
    """Take the lease, the right to command."""

    kind: Kind
    preempt: bool = False
    """Take it from the present holder; operators only."""


class ReleaseLease(Message, frozen=True, kw_only=True, tag="release_lease"):
    """Give the lease back; the arm is held where it is."""

    lease: Natural


class Arm(Message, frozen=True, kw_only=True, tag="arm"):
    """Hold the arm with torque and accept commands."""

    spec_sha256: Name
    """Hash of the spec that the client expects; refused if the robot's differs."""


class Disarm(Message, frozen=True, kw_only=True, tag="disarm"):
    """Stop the arm and accept no commands."""


class Pause(Message, frozen=True, kw_only=True, tag="pause"):
    """Hold; commands are refused and the lease does not expire."""


class Resume(Message, frozen=True, kw_only=True, tag="resume"):
    """End a pause."""


class AcknowledgeFault(Message, frozen=True, kw_only=True, tag="acknowledge_fault"):
    """An operator has checked the fault; the arm may recover."""

    reason: Annotated[str, msgspec.Meta(min_length=3, max_length=500)]


class Home(Message, frozen=True, kw_only=True, tag="home"):
    """Move to the home position within the limits, under the caller's lease."""

    lease: Natural


class ResetScene(Message, frozen=True, kw_only=True, tag="reset_scene"):
    """Reset a simulated scene, while the arm is disarmed."""

    start: Natural
    """Index of the initial state."""


class GetSpec(Message, frozen=True, kw_only=True, tag="get_spec"):
    """Ask for the robot's spec; answered by `Welcome`."""


class EventsSince(Message, frozen=True, kw_only=True, tag="events_since"):
    """Ask for the events with a number above `after`."""

    after: Natural


class Command(Message, frozen=True, kw_only=True, tag="command"):
    """A motion goal. Refused unless it is fresh, in order and under a valid lease."""

    lease: Natural
    mode: CommandMode
    data: Vector
    """joint_position: [n] rad. cartesian_pose: [7] m, xyzw. cartesian_delta: [6] m and rotation vector, rad,
    in the base frame, from the measured pose."""
    gripper: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """Opening; None leaves it as it is."""
    ttl_ms: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    """Age at which it is refused, by the server's clock, ms."""
    t_sent: Natural
    """Time of sending on the *server's* clock as estimated by the client, ns."""
    t_target: Natural = 0
    """Time at which it takes effect, on the server's clock, ns; 0 is at once."""
    obs_seq: Natural = 0
    """`seq` of the state from which it was computed."""


class SampleNow(Message, frozen=True, kw_only=True, tag="sample_now"):
    """Ask for a measurement now instead of waiting for the next published state."""


class Stop(Message, frozen=True, kw_only=True, tag="stop"):
    """Software e-stop; allowed to any authenticated client without a lease."""

    reason: Annotated[str, msgspec.Meta(max_length=500)] = ""


ClientMessage = (
    Hello
    | TimeSync
    | AcquireLease
    | ReleaseLease
    | Arm
    | Disarm
    | Pause
    | Resume
    | AcknowledgeFault
    | Home
    | ResetScene
    | GetSpec
    | EventsSince
    | Command
    | SampleNow
    | Stop
)

# ---- server to client -------------------------------------------------------------------------------


class Welcome(Message, frozen=True, kw_only=True, tag="welcome"):
    """Answer to `Hello` and `GetSpec`: facts about the server and the robot."""

    protocol: tuple[int, int]
    session: Name
    """Id of the server process, a uuid."""
    boot_id: Name
    """Boot id of the server's machine; equal boot ids share one monotonic clock."""
    spec: RobotSpec
    spec_sha256: Name
    lease_ms: Natural
    role: Role
    """Role of the client."""
    latency: Latency | None = None
    """Measured latency of the robot, only in the answer to `Hello`. Since 1.1."""


class TimeSyncReply(Message, frozen=True, kw_only=True, tag="time_sync_reply"):
    """Answer to `TimeSync`; `tm` is t2."""

    t0: Natural
    t1: Natural


class Done(Message, frozen=True, kw_only=True, tag="done"):
    """The request was carried out."""

    mode: Mode
    lease: Natural = 0


class Ack(Message, frozen=True, kw_only=True, tag="ack"):
    """A command was accepted."""

    command: Natural
    """`seq` of the command."""
    applied: Vector
    """The goal after all limits, in the command's mode and units."""
    clipped: tuple[Name, ...] = ()
    """Names of the limits that changed it."""
    t_applied: Natural
    """Time from which it applies, server's clock, ns."""


class Refused(Message, frozen=True, kw_only=True, tag="refused"):
    """The request was refused; the arm's motion does not change."""

    code: Code
    reason: Annotated[str, msgspec.Meta(max_length=500)]
    command: Natural = 0
    """`seq` of the refused command, if it was one."""


class Commanded(Message, frozen=True, kw_only=True, tag="commanded"):
    """A command and its result, published after its answer, for every command of a known client."""

    who: Name
    kind: Kind | None = None
    """Kind of the sender's lease; None if it had none."""
    command: Natural
    """`seq` of the command."""
    lease: Natural
    mode: CommandMode
    data: Vector
    gripper: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    t_sent: Natural
    t_target: Natural = 0
    obs_seq: Natural = 0
    applied: Vector = ()
    """As in `Ack`; empty if it was refused."""
    clipped: tuple[Name, ...] = ()
    t_applied: Natural = 0
    code: Code | None = None
    """Reason of the refusal; None if it was accepted."""


class Gripped(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A reading of the gripper."""

    opening: float
    t: Natural
    """Time of the reading, ns."""
    goal: float
    """Opening that was commanded last."""


class Loop(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Timing of the server's control loop."""

    late_us_p50: float
    late_us_p99: float
    overruns: Natural
    """Ticks that began late by more than half a period."""
    ticks: Natural


class State(Message, frozen=True, kw_only=True, tag="state"):
    """State of the arm, published at every tick."""

    t_sample: Natural
    """Time of the measurement, server's clock, ns."""
    q: Vector
    dq: Vector
    tau: Vector = ()
    position: Vector
    quaternion: Vector
    """xyzw"""
    wrench: Vector = ()
    setpoint: Vector = ()
    """Last setpoint written to the driver: joints [n] or pose [7]."""
    goal_seq: Natural = 0
    """`seq` of the command that is being followed."""
    mode: Mode
    fault: str = ""
    lease_holder: Name = ""
    gripper: Gripped | None = None
    sensors: dict[str, Reading] = {}
    loop: Loop | None = None


class Event(Message, frozen=True, kw_only=True, tag="event"):
    """An entry of the event log. `seq` numbers them from 1."""

    what: Name
    """`mode`, `lease`, `refused`, `fault`, `acknowledged`, `stop`, `overrun` …: see docs/protocol.md."""
    text: Annotated[str, msgspec.Meta(max_length=1000)]
    who: Name = ""
    code: str = ""


class Events(Message, frozen=True, kw_only=True, tag="events"):
    """Answer to `EventsSince`."""

    events: tuple[Event, ...]
    oldest: Natural
    """Number of the oldest event that is still kept."""


ServerMessage = Welcome | TimeSyncReply | Done | Ack | Refused | Commanded | State | Event | Events
