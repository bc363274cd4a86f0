"""Options of `hil=on`: training with human interventions."""

from dataclasses import dataclass, field
from typing import Any

NO_OPERATOR, SCRIPTED = "none", "scripted"


@dataclass
class HilConfig:
    """Training with actor and learner in two processes and an operator who may take over."""

    operator: str = "???"
    """Operator who may take over: the name of a `robot-rl teleop` device, `scripted` for the task's scripted
    expert, which watches the simulated arm, or `none`."""
    device: dict[str, Any] = field(default_factory=dict)
    """Settings of the device, the same as `device.…` of `robot-rl teleop`, e.g. `hil.device.port=8444`."""
    fraction: float = 1.0
    """Fraction of the episodes in which the operator may take over."""
    takeover_fails: bool = False
    """Whether a takeover ends the episode without reward for the critics (after RLIF, arXiv 2311.12996); if
    false, values bootstrap across it, as in HIL-SERL."""
    linear: float = 0.25
    """Linear speed at full deflection of the device, m/s."""
    angular: float = 1.0
    """Angular speed at full deflection of the device, rad/s."""
    robot: str | None = None
    """Address of the robot server that the actor drives; null simulates the task in the actor's process."""
    robot_keys: str | None = None
    """File of the actor's keys for the robot."""
    reset: str | None = None
    """Reset of the robot between episodes: `scene`, `operator` or `home`, as in `robot-rl deploy`."""
    success: str | None = None
    """`method=classifier` run, on the actor's machine, that judges success by the robot's cameras; null uses
    the robot's success sensor, or the operator's key."""
    correct_classifier: bool = False
    """Whether that classifier learns during training: from a success that the operator takes back, and from
    one that a person marks and that it missed. The corrected one is `classifier/` in the actor's `spool`."""
    instruction: str | None = None
    """What the robot is asked to do, for a policy that reads instructions; null for the task's only one."""
    turns_with: str | None = None
    """Name of another client of the robot, whose task resets this one's: they take turns, as in
    `robot-rl deploy`."""
    name: str = "actor"
    """Name of this client at the robot server."""
    first: bool = False
    """Whether this client has the first turn; start the other one first."""
    realtime: bool | None = None
    """Whether a simulated task runs in real time; null means only with a person as operator."""
    lockstep: bool = False
    """Whether the actor waits after each step for its updates, so that the same seed gives the same run."""
    weights_every: int = 20
    """Critic updates between two versions of the weights sent to the actor."""
    max_pending: int = 1000
    """Most updates that the learner may be behind `method.utd`; further ones are skipped, see `hil/utd`."""
    ahead: int = 20_000
    """Steps that an actor may be ahead of the learner before it waits between two episodes."""
    actors: int = 1
    """Number of robots, each with an actor: `robot-rl actor name=actor1 learner=…` and so on."""
    link: str | None = None
    """Address of the learner. With `tcp://host:port`, start the actor on its machine with
    `robot-rl actor learner=…`; otherwise the learner starts it."""
    keys: str | None = None
    """Directory of the learner's keys, from `robot-rl robot keys`; required for an address on a network."""

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise ValueError(f"hil.fraction={self.fraction}: choose it in [0, 1]")
        for name in ("weights_every", "max_pending", "ahead", "actors"):
            if getattr(self, name) < 1:
                raise ValueError(f"hil.{name}={getattr(self, name)}: choose 1 or more")
        person = self.has_person and self.operator != "???"
        if self.lockstep and (self.robot or self.realtime or person):
            raise ValueError(
                "hil.lockstep=true makes the actor wait for the learner, which a robot or a person "
                "cannot do: leave it out"
            )
        if self.realtime is False and person:
            raise ValueError(
                "hil.realtime=false: with a person as operator a task runs in real time; leave it out"
            )
        if self.actors > 1 and self.lockstep:
            raise ValueError(
                f"hil.lockstep=true alternates between learner and one actor, and hil.actors={self.actors}: "
                "leave one of them out"
            )
        if self.actors > 1 and not self.link:
            raise ValueError(
                f"hil.actors={self.actors}: give hil.link=…, the address at which you start each actor with "
                "`robot-rl actor learner=… name=…`"
            )
        for name in ("reset", "success", "instruction", "turns_with"):
            if getattr(self, name) and not self.robot:
                raise ValueError(
                    f"hil.{name}={getattr(self, name)} requires a robot: give hil.robot=…, or leave it out"
                )
        if self.correct_classifier and not (self.revocable or self.remote):
            raise ValueError(
                "hil.correct_classifier=true is for an operator who corrects a classifier: give "
                "hil.success=…, and a device or scripted as hil.operator"
            )
        if self.first and not self.turns_with:
            raise ValueError("hil.first=true is for clients that take turns: give hil.turns_with=…")
        if self.turns_with == self.name:
            raise ValueError(
                f"hil.turns_with={self.name} is the name of this client: choose another hil.name=…"
            )

    @property
    def has_person(self) -> bool:
        """Whether the operator is a person at a device."""
        return self.operator not in (SCRIPTED, NO_OPERATOR)

    @property
    def revocable(self) -> bool:
        """Whether the operator may take back a success that the classifier has seen."""
        corrects = self.has_person or (self.operator == SCRIPTED and self.correct_classifier)
        return corrects and self.success is not None

    @property
    def remote(self) -> bool:
        """Whether the user starts the actors, possibly on other machines."""
        return self.actors > 1 or (self.link is not None and not self.link.startswith("ipc://"))

    @property
    def actor_names(self) -> tuple[str, ...]:
        """Names of the actors of a run with several; the only one of a run may have any name."""
        return tuple(f"actor{i + 1}" for i in range(self.actors)) if self.actors > 1 else ("actor",)
