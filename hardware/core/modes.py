"""Which mode follows which cause. What the table does not have is refused.

disconnected  opened          idle
disconnected  stop            disconnected
idle          arm             armed
idle          reset_scene     idle
idle          fault           fault
idle          stop            fault
idle          closed          disconnected
armed         command_policy  policy
armed         command_human   human
armed         command_script  script
armed         lease_taken     armed
armed         lease_released  armed
armed         lease_lapsed    armed
armed         pause           paused
armed         disarm          idle
armed         fault           fault
armed         stop            fault
armed         closed          disconnected
policy        command_policy  policy
policy        lease_taken     armed
policy        lease_released  armed
policy        lease_lost      hold
policy        pause           paused
policy        disarm          idle
policy        fault           fault
policy        stop            fault
policy        closed          disconnected
human         command_human   human
human         lease_taken     armed
human         lease_released  armed
human         lease_lost      hold
human         pause           paused
human         disarm          idle
human         fault           fault
human         stop            fault
human         closed          disconnected
script        command_script  script
script        lease_taken     armed
script        lease_released  armed
script        lease_lost      hold
script        pause           paused
script        disarm          idle
script        fault           fault
script        stop            fault
script        closed          disconnected
paused        lease_taken     paused
paused        lease_released  paused
paused        resume          armed
paused        disarm          idle
paused        fault           fault
paused        stop            fault
paused        closed          disconnected
hold          lease_taken     armed
hold          hold_over       fault
hold          disarm          idle
hold          fault           fault
hold          stop            fault
hold          closed          disconnected
fault         acknowledge     idle
fault         fault           fault
fault         stop            fault
fault         closed          disconnected
"""

from collections.abc import Mapping
from enum import StrEnum

from robot_rl.hardware.core.refusal import Refusal
from robot_rl.hardware.protocol import messages
from robot_rl.hardware.protocol.messages import Code, Kind, Mode, Role


class Cause(StrEnum):
    """What can change the mode."""

    OPENED = "opened"
    CLOSED = "closed"
    ARM = "arm"
    RESET_SCENE = "reset_scene"
    DISARM = "disarm"
    COMMAND_POLICY = "command_policy"
    COMMAND_HUMAN = "command_human"
    COMMAND_SCRIPT = "command_script"
    LEASE_TAKEN = "lease_taken"
    LEASE_RELEASED = "lease_released"
    LEASE_LAPSED = "lease_lapsed"
    """Its holder never commanded within the grace."""
    LEASE_LOST = "lease_lost"
    """Its holder commanded and then fell silent."""
    PAUSE = "pause"
    RESUME = "resume"
    HOLD_OVER = "hold_over"
    """Nobody took a lease while the arm was held."""
    FAULT = "fault"
    STOP = "stop"
    ACKNOWLEDGE = "acknowledge"


COMMAND_OF: Mapping[Kind, Cause] = {
    "policy": Cause.COMMAND_POLICY,
    "human": Cause.COMMAND_HUMAN,
    "script": Cause.COMMAND_SCRIPT,
}

_ALWAYS = {Cause.FAULT: Mode.FAULT, Cause.STOP: Mode.FAULT, Cause.CLOSED: Mode.DISCONNECTED}
_COMMANDED = {
    Cause.LEASE_TAKEN: Mode.ARMED,
    Cause.LEASE_RELEASED: Mode.ARMED,
    Cause.LEASE_LOST: Mode.HOLD,
    Cause.PAUSE: Mode.PAUSED,
    Cause.DISARM: Mode.IDLE,
    **_ALWAYS,
}

TABLE: Mapping[Mode, Mapping[Cause, Mode]] = {
    Mode.DISCONNECTED: {Cause.OPENED: Mode.IDLE, Cause.STOP: Mode.DISCONNECTED},
    Mode.IDLE: {Cause.ARM: Mode.ARMED, Cause.RESET_SCENE: Mode.IDLE, **_ALWAYS},
    Mode.ARMED: {
        Cause.COMMAND_POLICY: Mode.POLICY,
        Cause.COMMAND_HUMAN: Mode.HUMAN,
        Cause.COMMAND_SCRIPT: Mode.SCRIPT,
        Cause.LEASE_TAKEN: Mode.ARMED,
        Cause.LEASE_RELEASED: Mode.ARMED,
        Cause.LEASE_LAPSED: Mode.ARMED,
        Cause.PAUSE: Mode.PAUSED,
        Cause.DISARM: Mode.IDLE,
        **_ALWAYS,
    },
    Mode.POLICY: {Cause.COMMAND_POLICY: Mode.POLICY, **_COMMANDED},
    Mode.HUMAN: {Cause.COMMAND_HUMAN: Mode.HUMAN, **_COMMANDED},
    Mode.SCRIPT: {Cause.COMMAND_SCRIPT: Mode.SCRIPT, **_COMMANDED},
    Mode.PAUSED: {
        Cause.LEASE_TAKEN: Mode.PAUSED,
        Cause.LEASE_RELEASED: Mode.PAUSED,
        Cause.RESUME: Mode.ARMED,
        Cause.DISARM: Mode.IDLE,
        **_ALWAYS,
    },
    Mode.HOLD: {
        Cause.LEASE_TAKEN: Mode.ARMED,
        Cause.HOLD_OVER: Mode.FAULT,
        Cause.DISARM: Mode.IDLE,
        **_ALWAYS,
    },
    Mode.FAULT: {Cause.ACKNOWLEDGE: Mode.IDLE, **_ALWAYS},
}

ENABLED = frozenset({Mode.ARMED, Mode.POLICY, Mode.HUMAN, Mode.SCRIPT, Mode.PAUSED, Mode.HOLD})
"""The arm is held with torque and takes setpoints."""
COMMANDED = frozenset({Mode.POLICY, Mode.HUMAN, Mode.SCRIPT})
"""The arm follows its lease's holder."""
TAKES_COMMANDS = COMMANDED | {Mode.ARMED}

_REMEDY: Mapping[Mode, str] = {
    Mode.DISCONNECTED: "the server has to open the driver first",
    Mode.IDLE: "send Arm first",
    Mode.ARMED: "it is armed and waits for a lease and a command",
    Mode.POLICY: "a policy commands it",
    Mode.HUMAN: "a person commands it",
    Mode.SCRIPT: "a script commands it",
    Mode.PAUSED: "send Resume first",
    Mode.HOLD: "its lease was lost: acquire a new one",
    Mode.FAULT: "an operator has to acknowledge the fault first",
}

_ANYONE: frozenset[Role] = frozenset({"observer", "policy", "operator"})
_DRIVERS: frozenset[Role] = frozenset({"policy", "operator"})
_OPERATORS: frozenset[Role] = frozenset({"operator"})

ROLES: Mapping[type[messages.Message], frozenset[Role]] = {
    messages.Hello: _ANYONE,
    messages.TimeSync: _ANYONE,
    messages.GetSpec: _ANYONE,
    messages.EventsSince: _ANYONE,
    messages.SampleNow: _ANYONE,
    messages.Stop: _ANYONE,
    messages.AcquireLease: _DRIVERS,
    messages.ReleaseLease: _DRIVERS,
    messages.Arm: _DRIVERS,
    messages.Disarm: _DRIVERS,
    messages.Pause: _DRIVERS,
    messages.Resume: _DRIVERS,
    messages.Home: _DRIVERS,
    messages.ResetScene: _DRIVERS,
    messages.Command: _DRIVERS,
    messages.AcknowledgeFault: _OPERATORS,
}
"""Who may ask for what."""
NEVER_MOVE = frozenset(kind for kind, roles in ROLES.items() if roles == _ANYONE)
"""Stops and questions: what observers may ask as well."""
MAY_PREEMPT = _OPERATORS
"""Who may take a lease from its holder, and pause, resume or disarm without being the holder."""


def refused_in(mode: Mode, what: str, fault: str) -> Refusal:
    """The refusal of `what`, which `mode` does not allow."""
    if mode is Mode.FAULT:
        return Refusal(Code.FAULT, f"{what}: the arm has a fault ({fault}); {_REMEDY[mode]}")
    return Refusal(Code.MODE, f"{what}: the arm is {mode.value}; {_REMEDY[mode]}")


def after(mode: Mode, cause: Cause, fault: str = "") -> Mode:
    """The mode that follows.

    Raises:
        Refusal: the table does not have it.
    """
    following = TABLE[mode].get(cause)
    if following is None:
        raise refused_in(mode, cause.value, fault)
    return following


def check_role(role: Role, message: messages.Message) -> None:
    """This role may ask for that.

    Raises:
        Refusal: ROLE.
    """
    allowed = ROLES[type(message)]
    if role not in allowed:
        what = type(message).__struct_config__.tag
        raise Refusal(Code.ROLE, f"{what}: {role} may not; it takes {' or '.join(sorted(allowed))}")


def as_text() -> str:
    """The table as it stands in this module's documentation."""
    rows = [(mode, cause, following) for mode, row in TABLE.items() for cause, following in row.items()]
    return "\n".join(f"{mode:<12}  {cause:<14}  {following}" for mode, cause, following in rows)
