"""What a search is to do, read from the arguments of its command and checked before anything runs."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from robot_rl.cli.command import Command
from robot_rl.cli.compose import checked
from robot_rl.cli.multirun import OWN, runs_at_a_time
from robot_rl.cli.overrides import literal, split_arguments
from robot_rl.cli.search.advisor import Rungs
from robot_rl.cli.search.space import Space, corners, read_space, trial_name, words
from robot_rl.errors import UserError
from robot_rl.runs import write_text

SAMPLES = "search.samples"
_DEFAULTS = {SAMPLES: 32, "search.reduction": 3, "search.min_steps": 0}
"""Options of a search; `min_steps` is `eval_every` if it is not given."""
_LEAST = {SAMPLES: 1, "search.reduction": 2, "search.min_steps": 1}
_SAME = ("name", "runs_dir", "seed", "device", "task.name", "method.steps", "eval_every", "eval_episodes")
"""Options without which the successes of trials could not be compared, or their folder not be found."""
_FILE = "search.json"
_EXAMPLE = "method.actor_lr=tag(log,interval(1e-5,1e-3))"


@dataclass(frozen=True)
class Plan:
    """A search."""

    command: Command
    given: Mapping[str, str]
    """Text of each option and range, as written in the command."""
    plugins: tuple[str, ...]
    space: Space
    rungs: Rungs
    samples: int
    """Number of trials."""
    jobs: int
    """Most trials at a time."""
    launcher: str
    device: str
    seed: int
    name: str
    """Name of the search, and of its folder."""
    folder: Path
    """The runs of the trials are in it."""

    @property
    def fixed(self) -> dict[str, str]:
        """Text of each option that all trials have."""
        return {key: text for key, text in self.given.items() if key not in self.space}

    def run(self, number: int, values: Mapping[str, str]) -> Path:
        """Directory of a trial's run."""
        return self.folder / trial_name(number, values)

    def trial(self, number: int, values: Mapping[str, str]) -> list[str]:
        """Arguments of the command of a trial, without its name."""
        place = {"runs_dir": literal(str(self.folder)), "name": literal(trial_name(number, values))}
        return words({**self.fixed, **values, **place})

    def line(self, arguments: Sequence[str]) -> list[str]:
        """What follows `robot-rl` to run the command with these arguments."""
        also = [f"plugins=[{','.join(self.plugins)}]"] if self.plugins else []
        return [*self.command.name.split(), *arguments, *also]


def read_plan(command: Command, arguments: Sequence[str], plugins: Sequence[str]) -> Plan:
    """Read the arguments of a search.

    Raises:
        UserError: if no search can be made of them, or the command refuses a value that they allow.
    """
    given = dict(split_arguments(command, arguments))
    jobs, launcher = runs_at_a_time(given), given.get("launcher", "local")
    numbers = _numbers(given)
    if launcher not in ("local", "ray"):
        raise UserError(f"launcher={launcher}: a search runs with launcher=ray, or local, the default")
    if command.output_directory is None:
        raise UserError(f"robot-rl {command.name} has no search; robot-rl train has")
    given = {key: text for key, text in given.items() if key not in (*OWN, "search", *_DEFAULTS)}
    space = read_space(given)
    if not space:
        raise UserError(f"search=asha needs an option with a range, like {_EXAMPLE}")
    config = _check_corners(command, given, space)
    return Plan(
        command=command,
        given=given,
        plugins=tuple(plugins),
        space=space,
        rungs=_rungs(config, numbers),
        samples=numbers[SAMPLES],
        jobs=jobs,
        launcher=launcher,
        device=config.device,
        seed=config.seed,
        name=config.name,
        folder=command.output_directory(config),
    )


def _numbers(given: Mapping[str, str]) -> dict[str, int]:
    """The options of the search."""
    numbers = dict(_DEFAULTS)
    if (search := given.get("search")) != "asha":
        asked = f"search={search}" if search else next(key for key in given if key.startswith("search."))
        raise UserError(f"{asked}: write search=asha" + (", which it belongs to" if not search else ""))
    for key, text in given.items():
        if key.startswith("search.") and key not in numbers:
            raise UserError(f"unknown key {key}; a search has {', '.join(numbers)}")
        if key in numbers:
            if not text.isdecimal() or int(text) < _LEAST[key]:
                raise UserError(f"{key}={text}: give a whole number from {_LEAST[key]} on")
            numbers[key] = int(text)
    return numbers


def _check_corners(command: Command, given: Mapping[str, str], space: Space) -> Any:
    """The configuration of a trial, after the command has taken all extreme values."""
    configs = [checked(command, words({**given, **corner})) for corner in corners(space)]
    for key in _SAME:
        found = list(dict.fromkeys(map(attrgetter(key), configs)))
        if len(found) > 1:
            raise UserError(
                f"{key} has to be the same in all trials of a search, and is {found[0]} or {found[1]}: "
                f"give one {key}=…"
            )
    return configs[0]


def _rungs(config: Any, numbers: Mapping[str, int]) -> Rungs:
    if not config.eval_every:
        raise UserError("search=asha compares evaluations during training: add eval_every=…")
    rungs = Rungs(
        numbers["search.min_steps"] or config.eval_every, numbers["search.reduction"], config.method.steps
    )
    if rungs.min_steps >= rungs.steps:
        option = "search.min_steps" if numbers["search.min_steps"] else "eval_every"
        raise UserError(
            f"{option}={rungs.min_steps}: no trial could be stopped before its end, "
            f"method.steps={rungs.steps}; give fewer"
        )
    return rungs


def check_folder(plan: Plan) -> None:
    """Check that the folder of a search is new, or that of the same search; writes nothing.

    Raises:
        UserError: if it holds something else.
    """
    path = plan.folder / _FILE
    if not path.is_file():
        if plan.folder.is_dir() and any(inside.name != ".lock" for inside in plan.folder.iterdir()):
            raise UserError(f"{plan.folder} exists and is not a search; choose another name=…")
        return
    try:
        before = json.loads(path.read_text())["arguments"]
        now = _arguments(plan)
        differing = [
            f"{key} was {before.get(key)}, now {now.get(key)}"
            for key in sorted(before.keys() | now.keys())
            if before.get(key) != now.get(key)
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({error!r}); choose another name=…") from error
    if differing:
        raise UserError(
            f"{plan.folder} holds a search with another command ({'; '.join(differing)}); "
            "choose another name=…, or remove the folder"
        )


def write_plan(plan: Plan, arguments: Sequence[str]) -> None:
    """Write the command of a search into its folder, which exists."""
    command = shlex.join(["robot-rl", *plan.line(["--multirun", *arguments])])
    content = {"command": command, "arguments": _arguments(plan)}
    write_text(plan.folder / _FILE, json.dumps(content, indent=1) + "\n")


def _arguments(plan: Plan) -> dict[str, str]:
    """What makes a search the same: all but its place, and the number of trials, which may grow."""
    rungs = {"search.reduction": plan.rungs.reduction, "search.min_steps": plan.rungs.min_steps}
    return {
        **plan.given,
        **{key: str(number) for key, number in rungs.items()},
        "plugins": ",".join(plan.plugins),
    }
