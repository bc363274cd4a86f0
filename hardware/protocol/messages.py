"""Every message of protocol 1, as typed msgpack maps tagged by `t`.

A decoder made from `ClientMessage` or `ServerMessage` validates names, types and ranges at C speed;
whatever is not one of these messages is an error. No message can make the receiver run code.
"""

from enum import StrEnum
from typing import Annotated, Literal

import msgspec

from robot_rl.hardware.spec import CommandMode, Latency, RobotSpec

PROTOCOL = (1, 1)
"""Major, minor. Another major is refused."""

Role = Literal["observer", "policy", "operator"]
Kind = Literal["policy", "human", "script"]
"""Who is behind a command."""

Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Name = Annotated[str, msgspec.Meta(max_length=128)]
Vector = Annotated[tuple[float, ...], msgspec.Meta(max_length=64)]
Reading = Annotated[tuple[float, ...], msgspec.Meta(max_length=1024)]
"""Of a sensor, as a whole simulated scene."""


class Mode(StrEnum):
    """What the server does with the arm; the table of who may change what is in hardware/core/modes.py."""

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
    """Why something was refused."""

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
    """The envelope of all."""

    src: Name
    """The sending process, a uuid."""
    seq: Natural
    """Counts up per sender and kind of message."""
    tm: Natural
    """Sender's monotonic clock, ns."""
    tw: Natural = 0
    """Wall clock, ns; for people."""
    id: Natural = 0
    """Of a request; its answer carries the same."""


# ---- client to server -------------------------------------------------------------------------------


class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """First on every connection."""

    protocol: tuple[int, int]
    name: Name
    role: Role
    """What the client wants to be; its key may allow less, and then it is refused."""


class TimeSync(Message, frozen=True, kw_only=True, tag="time_sync"):
    """`tm` is t0."""


class AcquireLease(Message, frozen=True, kw_only=True, tag="acquire_lease"):
    """Ask to be the one who commands."""

    kind: Kind
    preempt: bool = False
    """Take it from the present holder: operators only."""


class ReleaseLease(Message, frozen=True, kw_only=True, tag="release_lease"):
    """Give it back; the arm is held where it is."""

    lease: Natural


class Arm(Message, frozen=True, kw_only=True, tag="arm"):
    """Hold the arm with torque and be ready for commands."""

    spec_sha256: Name
    """Of the robot that the client believes it drives."""


class Disarm(Message, frozen=True, kw_only=True, tag="disarm"):
    """Come to rest and take no commands."""


class Pause(Message, frozen=True, kw_only=True, tag="pause"):
    """Hold; the lease stays, commands are refused."""


class Resume(Message, frozen=True, kw_only=True, tag="resume"):
    """End a pause."""


class AcknowledgeFault(Message, frozen=True, kw_only=True, tag="acknowledge_fault"):
    """A person has looked at it."""

    reason: Annotated[str, msgspec.Meta(min_length=3, max_length=500)]


class Home(Message, frozen=True, kw_only=True, tag="home"):
    """Move to the joints of rest within the limits, under the caller's lease."""

    lease: Natural


class ResetScene(Message, frozen=True, kw_only=True, tag="reset_scene"):
    """Let a simulated scene begin anew, while the arm is disarmed."""

    start: Natural
    """Which beginning."""


class GetSpec(Message, frozen=True, kw_only=True, tag="get_spec"):
    """Answered by `Welcome`."""


class EventsSince(Message, frozen=True, kw_only=True, tag="events_since"):
    """What a late joiner has missed: events with a number above `after`."""

    after: Natural


class Command(Message, frozen=True, kw_only=True, tag="command"):
    """Where the arm shall go. Refused unless it is fresh, in order and under a valid lease."""

    lease: Natural
    mode: CommandMode
    data: Vector
    """joint_position: [n] rad. cartesian_pose: [7] m, xyzw. cartesian_delta: [6] m and rotation vector, rad,
    in the base frame, from the measured pose."""
    gripper: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """Opening; None leaves it."""
    ttl_ms: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    """Age at which it is worthless, by the server's clock."""
    t_sent: Natural
    """When it was sent, on the *server's* clock as the client estimates it, ns."""
    t_target: Natural = 0
    """When it shall be acted on, on the server's clock, ns; 0 is at once."""
    obs_seq: Natural = 0
    """The state from which it was computed."""


class SampleNow(Message, frozen=True, kw_only=True, tag="sample_now"):
    """Ask for a state at once instead of waiting for the next one published."""


class Stop(Message, frozen=True, kw_only=True, tag="stop"):
    """Software e-stop: any authenticated client, no lease."""

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
    """What the client needs to know."""

    protocol: tuple[int, int]
    session: Name
    """The server's boot, a uuid."""
    boot_id: Name
    """Of the machine: the same one has the same monotonic clock."""
    spec: RobotSpec
    spec_sha256: Name
    lease_ms: Natural
    role: Role
    """What the client is."""
    latency: Latency | None = None
    """How late the robot is, in the answer to a `hello`. Since 1.1."""


class TimeSyncReply(Message, frozen=True, kw_only=True, tag="time_sync_reply"):
    """`tm` is t2."""

    t0: Natural
    t1: Natural


class Done(Message, frozen=True, kw_only=True, tag="done"):
    """The request was carried out."""

    mode: Mode
    lease: Natural = 0


class Ack(Message, frozen=True, kw_only=True, tag="ack"):
    """A command was taken."""

    command: Natural
    """Its seq."""
    applied: Vector
    """The goal after all limits, in the command's own mode and units."""
    clipped: tuple[Name, ...] = ()
    """Names of the limits that changed it."""
    t_applied: Natural
    """Server's clock, ns."""


class Refused(Message, frozen=True, kw_only=True, tag="refused"):
    """It was not, and the arm does as before."""

    code: Code
    reason: Annotated[str, msgspec.Meta(max_length=500)]
    command: Natural = 0
    """Seq of the refused command, if it was one."""


class Commanded(Message, frozen=True, kw_only=True, tag="commanded"):
    """Published for every command of a client that is known, after its answer: what was asked and applied."""

    who: Name
    kind: Kind | None = None
    """Of the sender's lease; None where it had none."""
    command: Natural
    """Its seq."""
    lease: Natural
    mode: CommandMode
    data: Vector
    gripper: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    t_sent: Natural
    t_target: Natural = 0
    obs_seq: Natural = 0
    applied: Vector = ()
    """As in `Ack`; empty where it was refused."""
    clipped: tuple[Name, ...] = ()
    t_applied: Natural = 0
    code: Code | None = None
    """Why it was refused."""


class Gripped(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The gripper's reading."""

    opening: float
    t: Natural
    """When it was read, ns."""
    goal: float


class Loop(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How well the server keeps time."""

    late_us_p50: float
    late_us_p99: float
    overruns: Natural
    """Ticks that began later than half a period."""
    ticks: Natural


class State(Message, frozen=True, kw_only=True, tag="state"):
    """Published at every tick, one part."""

    t_sample: Natural
    """When it was measured, server's clock, ns."""
    q: Vector
    dq: Vector
    tau: Vector = ()
    position: Vector
    quaternion: Vector
    """xyzw"""
    wrench: Vector = ()
    setpoint: Vector = ()
    """What was last written to the driver: joints [n] or pose [7]."""
    goal_seq: Natural = 0
    """Seq of the command that is being followed."""
    mode: Mode
    fault: str = ""
    lease_holder: Name = ""
    gripper: Gripped | None = None
    sensors: dict[str, Reading] = {}
    loop: Loop | None = None


class Event(Message, frozen=True, kw_only=True, tag="event"):
    """Something that a log must hold. `seq` numbers them from 1."""

    what: Name
    """`mode`, `lease`, `refused`, `fault`, `acknowledged`, `stop`, `overrun`, `camera` …"""
    text: Annotated[str, msgspec.Meta(max_length=1000)]
    who: Name = ""
    code: str = ""


class Events(Message, frozen=True, kw_only=True, tag="events"):
    """Answer to `EventsSince`."""

    events: tuple[Event, ...]
    oldest: Natural
    """Number of the oldest that is still kept."""


ServerMessage = Welcome | TimeSyncReply | Done | Ack | Refused | Commanded | State | Event | Events
