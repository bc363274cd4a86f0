"""Reads benchmark protocols: entries, seeds, budget and evaluation of a task. One YAML file per task.

collect: episodes=15 noise=0.3          # options of `robot-rl collect`
base: base=diffusion method.steps=1000  # options of `robot-rl train method=bc`
steps: 20000                            # environment steps of every run
eval_every: 10000                       # a divisor of steps
eval_episodes: 100                      # validation states
save_every: 2000                        # a divisor of steps; default eval_every
test_episodes: 500                      # test states at the end; default 500
curve_episodes: 100                     # test states for saved policies; default test_episodes
title: Lift with two critics            # heading of its table; default the task
entries:
  residual:
    options: method=residual            # options of `robot-rl train`
    seeds: [0, 1, 2, 3, 4]
    priority: 1                         # lower runs earlier
  residual-no_penalty:                  # an ablation: the options of its parent, then these
    options: method.penalty=0
    seeds: [0, 1, 2]
    priority: 3
  bc:                                   # behaviour-cloning baseline with more demonstrations than the base
    collect: episodes=60 noise=0.3      # options of `robot-rl collect`; each seed collects its own
    options: method=bc base=diffusion method.steps=3000
    seeds: [0, 1, 2]
    priority: 4

A behaviour-cloning baseline is evaluated once, after training; its steps are those of its demonstrations.

With validation states a run is evaluated while it trains, every `eval_every` steps. With test states the
policies that it saved every `save_every` steps are evaluated when it is finished.

The same commands give another base on another processor. A policy in a folder next to the file, named after
the task, is used as the base on every machine.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from robot_rl.errors import UserError, nearest
from robot_rl.evaluation.initial_states import COUNTS, TEST, VALIDATION, Split

_KEYS = ("collect", "base", "steps", "eval_every", "eval_episodes", "entries")
_ENTRY_KEYS = ("options", "seeds", "priority")
_OPTIONAL = ("save_every", "test_episodes", "curve_episodes", "title")
_ENTRY_OPTIONAL = ("collect",)
_PROTOCOL_OPTIONS = {
    *("task", "data", "name", "runs_dir", "seed", "device", "threads", "episodes", "method.steps"),
    *("checkpoint_every", "eval_every", "eval_episodes", "save_every"),
}
"""Options of a run that the protocol sets."""


@dataclass(frozen=True)
class Entry:
    """A method with its options, or an ablation of one (`parent-what`)."""

    name: str
    options: tuple[str, ...]
    """Options of `robot-rl train`; for an ablation first those of its parent."""
    seeds: tuple[int, ...]
    priority: int
    collect: tuple[str, ...] | None = None
    """Options of `robot-rl collect` of a behaviour-cloning baseline; None for other entries."""

    @property
    def parent(self) -> str | None:
        """Name of the entry that this is an ablation of, or None."""
        return self.name.partition("-")[0] if "-" in self.name else None

    @property
    def from_base(self) -> bool:
        """Whether it starts from the task's base policy; False if its options choose another base or none."""
        return not any(option.startswith("base=") for option in self.options)


@dataclass(frozen=True)
class Protocol:
    """Protocol of one task: how its entries are trained and evaluated."""

    task: str
    group: str
    """Folder of its file, after which the folder of its results is named."""
    title: str
    collect: tuple[str, ...]
    base: tuple[str, ...]
    steps: int
    eval_every: int
    """Environment steps."""
    eval_episodes: int
    """Validation states of each evaluation."""
    save_every: int
    """Environment steps."""
    test_episodes: int
    """Test states at the end of a run."""
    curve_episodes: int
    """Test states for the policies saved before the end."""
    entries: tuple[Entry, ...]
    kept_base: Path | None = None
    """Directory of a stored base policy; None if each machine trains its own."""
    split: Split = VALIDATION
    """Initial states that the runs are evaluated on."""

    @property
    def final_episodes(self) -> int:
        """Number of initial states for the base and for the end of a run."""
        return self.test_episodes if self.split == TEST else self.eval_episodes

    def preparation(self) -> dict[str, Any]:
        """Settings of demonstrations and base, which all runs of the task share."""
        episodes = "test_episodes" if self.split == TEST else "eval_episodes"
        return {"collect": list(self.collect), "base": list(self.base), episodes: self.final_episodes}

    def terms(self, entry: Entry) -> dict[str, Any]:
        """All settings that a result of an entry depends on, except the seed; stored with each result."""
        settings: dict[str, Any] = {"steps": self.steps, "eval_every": self.eval_every}
        if self.split == TEST:
            settings = {key: getattr(self, key) for key in ("steps", "save_every", "curve_episodes")}
        if entry.collect is not None:
            settings = {"demonstrations": list(entry.collect)}
        return {**self.preparation(), **settings, "options": list(entry.options)}


def read_protocols(path: Path, split: Split = VALIDATION) -> list[Protocol]:
    """Read the protocols of a folder (one file per task) or of one file, for the states of a split.

    Raises:
        UserError: if there is none, or one is invalid; says where and why.
    """
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise UserError(
            f"protocol={path}: there is no protocol; those of robot-rl are in benchmarks/protocol"
        )
    return [_read(file, split) for file in files]


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a key that is given twice, of which YAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise yaml.MarkedYAMLError(problem=f"{twice[0]!r} is given twice", problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)


def _read(file: Path, split: Split) -> Protocol:
    try:
        content = _UniqueKeys(file.read_text()).get_single_data()
    except yaml.YAMLError as error:
        raise UserError(f"{file} is not YAML: {error}") from error
    content = _section(content, f"{file}:", _KEYS, _OPTIONAL)
    test_episodes = content.get("test_episodes", COUNTS[TEST])
    numbers = {
        **{key: content[key] for key in ("steps", "eval_every", "eval_episodes")},
        "save_every": content.get("save_every", content["eval_every"]),
        "test_episodes": test_episodes,
        "curve_episodes": content.get("curve_episodes", test_episodes),
    }
    for key, number in numbers.items():
        if not isinstance(number, int) or number < 1:
            raise UserError(f"{file}: {key} is {number!r}; it must be a whole number above 0")
    for key, most in (
        ("eval_episodes", COUNTS[VALIDATION]),
        ("test_episodes", COUNTS[TEST]),
        ("curve_episodes", test_episodes),
    ):
        if numbers[key] > most:
            raise UserError(f"{file}: {key} is {numbers[key]}; it must be at most {most}")
    for key in ("eval_every", "save_every"):
        if numbers["steps"] % numbers[key]:
            raise UserError(f"{file}: {key} must be a divisor of steps, so that the end is evaluated")
    if not isinstance(content["entries"], Mapping) or not content["entries"]:
        raise UserError(f"{file}: entries must have at least one entry, with {', '.join(_ENTRY_KEYS)}")
    return Protocol(
        task=file.stem,
        group=file.resolve().parent.name,
        title=str(content.get("title", file.stem.capitalize())),
        collect=_options(content["collect"], f"{file}: collect:", _PROTOCOL_OPTIONS - {"episodes"}),
        base=_options(content["base"], f"{file}: base:", _PROTOCOL_OPTIONS - {"method.steps"}),
        **numbers,
        entries=tuple(_entries(content["entries"], file)),
        kept_base=file.with_suffix("") if file.with_suffix("").is_dir() else None,
        split=split,
    )


def _entries(entries: Mapping[str, Any], file: Path) -> Iterator[Entry]:
    read: dict[str, Entry] = {}
    for name, content in entries.items():
        where = f"{file}: entries: {name}:"
        if not re.fullmatch(r"\w+(-\w+)?", str(name)):
            raise UserError(f"{where} a name has letters, digits and _, and one `-` before the ablation")
        content = _section(content, where, _ENTRY_KEYS, _ENTRY_OPTIONAL)
        parent, ablated, _ = str(name).partition("-")
        if ablated and parent not in read:
            raise UserError(f"{where} it is an ablation of {parent}, which must be an earlier entry")
        inherited = read[parent] if ablated else None
        collect = inherited.collect if inherited else None
        if "collect" in content:
            added = _options(content["collect"], f"{where} collect:", _PROTOCOL_OPTIONS - {"episodes"})
            collect = (*(collect or ()), *added)
        taken = _PROTOCOL_OPTIONS if collect is None else _PROTOCOL_OPTIONS - {"method.steps"}
        options = (*(inherited.options if inherited else ()), *_options(content["options"], where, taken))
        methods = [option for option in options if option.startswith("method=")]
        if (methods[-1:] == ["method=bc"]) != (collect is not None):
            raise UserError(f"{where} method=bc needs collect, and other methods must not have it")
        seeds, priority = content["seeds"], content["priority"]
        if not isinstance(seeds, list) or not seeds or not all(type(s) is int and s >= 0 for s in seeds):
            raise UserError(f"{where} seeds must be a list such as [0, 1, 2]")
        if len(set(seeds)) < len(seeds):
            raise UserError(f"{where} a seed is repeated")
        if type(priority) is not int:
            raise UserError(f"{where} priority must be a whole number; the lowest is run first")
        read[str(name)] = Entry(str(name), options, tuple(seeds), priority, collect)
        yield read[str(name)]


def _section(
    content: Any, where: str, keys: tuple[str, ...], optional: tuple[str, ...] = ()
) -> Mapping[str, Any]:
    if not isinstance(content, Mapping):
        raise UserError(f"{where} it must have the keys {', '.join(keys)}")
    known = (*keys, *optional)
    for key in content:
        if key not in known:
            spelled = nearest(str(key), known)
            hint = f"; did you mean {spelled}?" if spelled else f"; choose from {', '.join(known)}"
            raise UserError(f"{where} unknown key {key}{hint}")
    for key in keys:
        if key not in content:
            raise UserError(f"{where} {key} is missing")
    return content


def _options(text: Any, where: str, taken: set[str]) -> tuple[str, ...]:
    """Split a line of options, `key=value` each; `taken` are those that the protocol sets."""
    try:
        options = tuple(shlex.split(text or ""))
    except (ValueError, AttributeError, TypeError):
        raise UserError(f"{where} {text!r} is not a line of options key=value") from None
    for option in options:
        key, equals, _ = option.partition("=")
        if not equals or not key[:1].isalpha():
            raise UserError(f"{where} {option} is not key=value")
        if key in taken:
            raise UserError(f"{where} {key} is set by the protocol and cannot be an option")
    return options
