"""Options of `base=remote`."""

import math
from dataclasses import dataclass, field, fields

UNITS = ("normalized", "si")
MODES = ("delta", "absolute")
_OWN = ("url", "timeout", "certificate", "execute")
"""Options for servers that describe themselves."""


@dataclass
class RemoteConfig:
    """A base policy behind a policy server."""

    url: str = "???"
    """Address of the policy server: `ws://host:port` or `wss://host:port`."""
    timeout: float = 30.0
    """Time for an answer, with all attempts to connect again, s."""
    certificate: str | None = None
    """PEM file of certificates to trust besides those of the system, for `wss`."""
    execute: int | None = None
    """Control steps of each chunk that are executed; null for what the server says."""
    cameras: dict[str, str] = field(default_factory=dict)
    """For openpi or LeRobot: the task's cameras, and the server's keys of their images."""
    state: dict[str, list[str]] = field(default_factory=dict)
    """For openpi or LeRobot: its keys of states, and the task's state keys that each consists of."""
    prompt: str | None = None
    """For openpi or LeRobot: the instruction; null for the task's, if it has some."""
    prompt_key: str = "prompt"
    """For openpi or LeRobot: its key of the instruction."""
    action_units: str | None = None
    """For openpi or LeRobot: `normalized` if its motions are in [-1, 1] as the task's, `si` if they are in m
    and rad."""
    action_mode: str | None = None
    """For openpi or LeRobot: `delta` or `absolute` motions, which must be the task's."""
    action_frame: str | None = None
    """For openpi or LeRobot: the frame of its motions, which must be the task's."""
    gripper: list[float] = field(default_factory=list)
    """For openpi or LeRobot: its values for an open and a closed gripper, for example [-1, 1]."""

    def __post_init__(self) -> None:
        if not 0 < self.timeout < math.inf:
            raise ValueError(f"base.timeout={self.timeout}: it must be positive and finite")
        if self.execute is not None and self.execute < 1:
            raise ValueError(f"base.execute={self.execute}: it must be at least 1")
        for name, valid in (("action_units", UNITS), ("action_mode", MODES)):
            value = getattr(self, name)
            if value not in (None, *valid):
                raise ValueError(f"base.{name}={value}: choose {' or '.join(valid)}")
        if self.gripper and (len(self.gripper) != 2 or self.gripper[0] == self.gripper[1]):
            raise ValueError(f"base.gripper={self.gripper}: give two values, for open and closed")

    @property
    def mapping(self) -> list[str]:
        """Names of the given options that are for servers of openpi."""
        default = RemoteConfig(url=self.url)
        names = (option.name for option in fields(self) if option.name not in _OWN)
        return [name for name in names if getattr(self, name) != getattr(default, name)]
