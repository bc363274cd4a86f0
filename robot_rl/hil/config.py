"""How a person helps while a policy learns."""

from dataclasses import dataclass, field
from typing import Any

NOBODY, SCRIPTED = "none", "scripted"


@dataclass
class HilConfig:
    """Actor and learner are two processes, and somebody may take over from the policy."""

    operator: str = "???"
    """Who takes over: the name of a device as in `robot-rl teleop`, `scripted` for the task's scripted
    expert, which watches the simulated arm, or `none`."""
    device: dict[str, Any] = field(default_factory=dict)
    """Settings of that device, which are `device.…` of `robot-rl teleop`: `hil.device.port=8444`."""
    fraction: float = 1.0
    """Part of the episodes in which the operator may take over."""
    takeover_fails: bool = False
    """A takeover is worth to the policy what a failure is (after RLIF, arXiv 2311.12996); if false, value
    goes on over it, as in HIL-SERL."""
    linear: float = 0.25
    """Speed at full deflection of a device, m/s."""
    angular: float = 1.0
    """The same in rad/s."""
    robot: str | None = None
    """Address of the robot's server, which the actor drives; the task in its own process if null."""
    robot_keys: str | None = None
    """File of the actor's keys for that robot."""
    reset: str | None = None
    """How an episode on the robot begins: `scene`, `operator` or `home`, as for `robot-rl deploy`."""
    success: str | None = None
    """Run of `method=classifier`, on the actor's machine, that judges success by the robot's cameras; null
    for the robot's sensor, or you."""
    turns_with: str | None = None
    """Name of another client of the robot, whose episodes undo what this one's do: they take turns, as with
    `robot-rl deploy`."""
    name: str = "actor"
    """What the robot's server calls this one."""
    first: bool = False
    """Whether this one has the first turn; the other one is started first."""
    realtime: bool | None = None
    """Whether a simulated task keeps the pace of its control; if null, where a person drives."""
    lockstep: bool = False
    """The actor waits after each step until all has been learned of it: the same seed gives the same run."""
    weights_every: int = 20
    """Critic updates between two versions of the weights that the actor gets."""
    most_owed: int = 1000
    """Updates that the learner may be behind `method.utd`; what is beyond is left out, as `hil/utd` says."""
    ahead: int = 20_000
    """Steps that the actor may be ahead of the learner; then it waits between two episodes."""
    link: str | None = None
    """Address of the learner. With `tcp://host:port` you start the actor yourself, on its machine, with
    `robot-rl actor learner=…`; else it is started here."""
    keys: str | None = None
    """Directory of the learner's keys, from `robot-rl robot keys`; required for an address on a network."""

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise ValueError(f"hil.fraction={self.fraction}: choose it in [0, 1]")
        for name in ("weights_every", "most_owed", "ahead"):
            if getattr(self, name) < 1:
                raise ValueError(f"hil.{name}={getattr(self, name)}: choose 1 or more")
        if self.lockstep and (self.robot or self.realtime or self.operator not in (SCRIPTED, NOBODY, "???")):
            raise ValueError(
                "hil.lockstep=true lets the actor wait for the learner, which a robot or a person cannot: "
                "leave it out"
            )
        for name in ("reset", "success", "turns_with"):
            if getattr(self, name) and not self.robot:
                raise ValueError(
                    f"hil.{name}={getattr(self, name)} is for a robot: give hil.robot=…, or leave it out"
                )
        if self.turns_with == self.name:
            raise ValueError(
                f"hil.turns_with={self.name} is this client's own name: choose another hil.name=…"
            )

    @property
    def has_person(self) -> bool:
        """Whether somebody is at a device."""
        return self.operator not in (SCRIPTED, NOBODY)

    @property
    def remote(self) -> bool:
        """Whether the actor is started by hand, as its machine may be another one."""
        return self.link is not None and not self.link.startswith("ipc://")
