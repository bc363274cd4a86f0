"""A command of robot-rl, and its configuration before it is complete."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from robot_rl.assets import asset_path
from robot_rl.cli.options import Option, options
from robot_rl.cli.user_files import own_files


@dataclass(frozen=True)
class Command:
    """A command of robot-rl: its configuration and the function that runs it."""

    name: str
    config: type
    run: Callable[[Any], None]
    groups: Mapping[str, Mapping[str, type]] = field(default_factory=dict)
    """Schema of each choice of each group."""
    summary: str = ""
    output_directory: Callable[[Any], Path] | None = None
    """Directory that the command writes with a configuration; needed for `--multirun`."""
    configs: Path = field(default_factory=lambda: asset_path("configs"))

    @property
    def root(self) -> str:
        """Name of the YAML file in `configs/`."""
        return self.name.replace(" ", "_")

    def choices(self, group: str) -> list[str]:
        """Names that `group=` takes: those of `GROUPS`, of shipped files and of the user's."""
        names = {path.stem for path in (self.configs / group).glob("*.yaml")}
        names |= self.groups[group].keys() - {"*"}
        if self.takes_files(group):
            names |= own_files(group).keys()
        return sorted(name for name in names if self.schema(group, name) is not None)

    def takes_files(self, group: str) -> bool:
        """Whether `group=` takes the user's own files."""
        return "*" in self.groups[group]

    def schema(self, group: str, choice: str) -> type | None:
        """Dataclass of a choice, None if there is no such choice."""
        return self.groups[group].get(choice, self.groups[group].get("*"))


@dataclass(frozen=True)
class Draft:
    """A checked configuration in which mandatory values may still be missing."""

    command: Command
    values: DictConfig
    chosen: dict[str, str | None]
    """Choice of each group: None if there is none, "???" if the user must choose."""

    def options(self) -> list[Option]:
        """Every option with its value; groups without a choice have none."""
        return [option for option in options(self.values) if option.key not in self.chosen]
