"""State machine of the arm's mode: transitions that are not in `TRANSITIONS` are refused."""

from collections.abc import Mapping
from enum import StrEnum

from robot_rl.hardware.core.events import Refusal
from robot_rl.hardware.protocol import messages
from robot_rl.hardware.protocol.messages import Code, Kind, Mode, Role


class Cause(StrEnum):
    """What triggers a mode transition."""

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
    """The holder sent no command within `FIRST_COMMAND_TIMEOUT`."""
    LEASE_LOST = "lease_lost"
    """The holder sent commands and then stopped."""
    PAUSE = "pause"
    RESUME = "resume"
    HOLD_OVER = "hold_over"
    """No client took a lease within the hold time."""
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

# Mode, cause, next mode.
TRANSITIONS: Mapping[Mode, Mapping[Cause, Mode]] = {
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
"""Modes in which the arm is held with torque and takes setpoints."""
COMMANDED = frozenset({Mode.POLICY, Mode.HUMAN, Mode.SCRIPT})
"""Modes in which the arm follows the lease's holder."""
TAKES_COMMANDS = COMMANDED | {Mode.ARMED}

_HINT: Mapping[Mode, str] = {
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

_ALL_ROLES: frozenset[Role] = frozenset({"observer", "policy", "operator"})
_COMMANDERS: frozenset[Role] = frozenset({"policy", "operator"})
_OPERATORS: frozenset[Role] = frozenset({"operator"})

ROLES: Mapping[type[messages.Message], frozenset[Role]] = {
    messages.Hello: _ALL_ROLES,
    messages.TimeSync: _ALL_ROLES,
    messages.GetSpec: _ALL_ROLES,
    messages.EventsSince: _ALL_ROLES,
    messages.SampleNow: _ALL_ROLES,
    messages.Stop: _ALL_ROLES,
    messages.AcquireLease: _COMMANDERS,
    messages.ReleaseLease: _COMMANDERS,
    messages.Arm: _COMMANDERS,
    messages.Disarm: _COMMANDERS,
    messages.Pause: _COMMANDERS,
    messages.Resume: _COMMANDERS,
    messages.Home: _COMMANDERS,
    messages.ResetScene: _COMMANDERS,
    messages.Command: _COMMANDERS,
    messages.AcknowledgeFault: _OPERATORS,
}
"""Roles that may send each request."""
NEVER_MOVE = frozenset(kind for kind, roles in ROLES.items() if roles == _ALL_ROLES)
"""Requests that never move the arm: stops and queries, allowed to observers too."""
MAY_PREEMPT = _OPERATORS
"""Roles that may take a lease from its holder, and pause, resume or disarm without holding it."""


def mode_refusal(mode: Mode, what: str, fault: str) -> Refusal:
    """A `Refusal` of request `what`, which `mode` does not allow."""
    if mode is Mode.FAULT:
        return Refusal(Code.FAULT, f"{what}: the arm has a fault ({fault}); {_HINT[mode]}")
    return Refusal(Code.MODE, f"{what}: the arm is {mode.value}; {_HINT[mode]}")


def next_mode(mode: Mode, cause: Cause, fault: str = "") -> Mode:
    """The mode that follows `mode` after `cause`.

    Raises:
        Refusal: if the table has no such transition.
    """
    following = TRANSITIONS[mode].get(cause)
    if following is None:
        raise mode_refusal(mode, cause.value, fault)
    return following


def check_role(role: Role, message: messages.Message) -> None:
    """Check that `role` may send `message`.

    Raises:
        Refusal: ROLE, if it may not.
    """
    allowed = ROLES[type(message)]
    if role not in allowed:
        what = type(message).__struct_config__.tag
        raise Refusal(Code.ROLE, f"{what}: {role} may not; the role must be {' or '.join(sorted(allowed))}")
