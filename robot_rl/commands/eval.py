"""Evaluate a policy and its base on the saved initial states of its task.

Writes `eval/summary.json` (success rates with 95 % Wilson intervals) and `eval/episodes.csv` (the outcome of
every episode) into the run; those of test states go into `eval/test/`. Success is also listed by instruction,
and with `under=[…]` in the disturbed task, whose results go to `under/<disturbance>/`.
"""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from robot_rl.cli.progress import progress
from robot_rl.data.compatibility import OF_A_SCENE, check_same_environment
from robot_rl.envs.action import repeated_in_hold
from robot_rl.envs.disturbances import DISTURBANCES, check_disturbances
from robot_rl.envs.disturbed_env import DisturbedEnv
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.vector import TaskVectorEnv
from robot_rl.errors import UserError, as_user_errors
from robot_rl.evaluation.evaluate import (
    Motion,
    Outcome,
    Summary,
    by_instruction,
    check_replaced,
    evaluate,
    write_evaluation,
)
from robot_rl.evaluation.initial_states import TEST, InitialStates, Split, check_split, load_states
from robot_rl.evaluation.policy_snapshots import (
    Saved,
    read_record,
    record_path,
    saved_policies,
    summary_of,
    write_record,
)
from robot_rl.factory import make_vector_env, task_of
from robot_rl.files.durable import make_folder
from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.async_runner import execute_asynchronously
from robot_rl.policies.asynchronous import AsyncOptions
from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.finetuned.dsrl import RepeatedNoisePolicy
from robot_rl.policies.finetuned.finetuned_policy import FinetunedPolicy
from robot_rl.policies.store import fingerprint
from robot_rl.runs import UNDER
from robot_rl.saved_policies.loading import (
    acting_policy,
    base_of,
    check_instructions,
    choose_device,
    chosen_execution,
    is_server,
    load_networks,
    side_by_side,
    trained_execution,
    warn_of_other_execution,
)
from robot_rl.training.provenance import check_frozen, current_code
from robot_rl.workers.config import SimulationsConfig
from robot_rl.workers.ray_vector import cluster_envs

REPEATED = "repeated_noise"

GROUPS = {"task": {"*": TaskConfig}, "workers": {"ray": SimulationsConfig}}


@dataclass
class Config:
    policy: str = "???"
    """Directory of a run or of a saved policy, or ws://host:port of a policy behind `robot-rl serve`."""
    split: str = "validation"
    """`validation`, to choose options, or `test`, to report, which needs a finished run of committed code."""
    episodes: int | None = None
    """Number of initial states to use; all if null."""
    saved: bool = False
    """Evaluate each policy saved by `save_every`, without its base, into `<step>.json`."""
    curve_episodes: int | None = None
    """With saved=true, number of states for all policies but the last; the same as for the last if null."""
    num_envs: int = 4
    """Environments stepped together."""
    workers: Any = None
    """`ray` for environments in processes on the machines of a Ray cluster, with the same results."""
    seed: int = 0
    """Seed of the policies' noise."""
    asynchronous: str | None = None
    """Asynchronous execution, for a policy that is slower than the control rate: `naive`, `blend`, `prefix`,
    `guided` or `off`; as in the policy's training if null."""
    delay: int | None = None
    """With asynchronous: control steps from an observation to the chunk that is computed from it; as in the
    policy's training if null."""
    states: str | None = None
    """Your own file of initial states, instead of the task's list."""
    task: Any = None
    """Task to evaluate in, for a policy that was trained on several scenes; its own if null."""
    swapped: bool = False
    """Give the policy the task's next instruction, while success stays that of the first; results go to
    `swapped/`. A policy that uses the instruction then fails."""
    repeated_noise: bool = False
    """Compare the base with itself where the noise of one step is repeated over each chunk, as the actor of
    method.repeated_noise=true (DSRL) gives it; results go to `repeated_noise/`."""
    under: list[str] = field(default_factory=list)
    """Disturbances in each of which policy and base are evaluated too: camera, light, texture, render,
    size, mass, delay, drop, push, removed, noise or rate (docs/evaluation.md)."""
    out: str | None = None
    """Folder of the results; if null, `eval` or `eval/test` in the policy's directory, and of another
    execution than in training a folder like `naive_delay2` in it."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto` for a GPU where there is one."""

    def __post_init__(self) -> None:
        for name in ("episodes", "curve_episodes", "num_envs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: ask for at least 1")
        if self.curve_episodes and not self.saved:
            raise ValueError(f"curve_episodes={self.curve_episodes} is for saved=true")
        if is_server(self.policy) and (not self.out or self.saved):
            raise ValueError(f"policy={self.policy} has no directory: add out=…, and leave out saved")
        if self.saved and self.swapped:
            raise ValueError("swapped=true is for one policy: leave out saved=true")
        if self.repeated_noise and (self.saved or self.under or self.asynchronous or self.delay):
            raise ValueError(
                "repeated_noise=true compares two ways to act: leave out saved, under, asynchronous and delay"
            )
        if self.under and (self.saved or self.workers):
            raise ValueError("under=[…] is for one policy, in this process: leave out saved and workers")
        if check_split(self.split) == TEST and self.states:
            raise ValueError("split=test uses the task's own test states: leave out states=…")


def run(config: Config) -> None:
    # A few observations through a small network: more threads do not help.
    torch.set_num_threads(1)
    split = check_split(config.split)
    policy = Path(config.policy)
    with ExitStack() as closing:
        with as_user_errors():
            device = choose_device(config.device)
            saved = saved_policies(policy) if config.saved else []
            facts = check_frozen(policy, current_code()) if split == TEST else {}
            networks, meta = load_networks(saved[-1][0] if saved else config.policy, device)
            mode = "off" if config.repeated_noise else config.asynchronous
            execution = chosen_execution(mode, config.delay, meta)
            facts |= {"seed": config.seed} | (asdict(execution) if execution else {})
            out = (
                Path(config.out) if config.out else _folder(config, split, execution, trained_execution(meta))
            )
            make_envs = cluster_envs(config.workers, closing) if config.workers else make_vector_env
            envs = make_envs(config.task or task_of(meta["environment"]), config.num_envs)
            closing.callback(envs.close)
            accept = OF_A_SCENE if config.task else ()
            check_same_environment(meta["environment"], envs.describe(), f"policy {config.policy}", accept)
            told = _check_instructions(config, networks, envs)
            # Refused before the first episode.
            for make_policy, _ in _candidates(config, networks).values():
                _acting(make_policy, envs, execution)
            initial = load_states(envs, Path(config.states) if config.states else None, split)
            check_disturbances(config.under, envs.task)
            for name in config.under:
                # Built here, so that what cannot be disturbed is refused before the first episode.
                DisturbedEnv(envs.task, name, config.seed).close()
            for name in ("episodes", "curve_episodes"):
                if (getattr(config, name) or 0) > len(initial.states):
                    raise ValueError(
                        f"{name}={getattr(config, name)}: {initial.name} has {len(initial.states)} states"
                    )
            if not saved:
                candidates = _candidates(config, networks).values()
                known = {fingerprint(candidate) for _, candidate in candidates}
                check_replaced(out, known, config.episodes or len(initial.states), config.seed)
            make_folder(out)
            if not os.access(out, os.W_OK):
                raise UserError(f"{out} cannot be written: choose another out=…")
        episodes = config.episodes or len(initial.states)
        warn_of_other_execution(networks, meta, execution)
        print(f"{initial.task}: {episodes} episodes from {initial.name}, noise seed {config.seed}")
        evaluation = _Evaluation(config, initial, out, execution, facts, told)
        if saved:
            evaluation.saved(saved, envs, device)
        else:
            evaluation.both(networks, envs)
            for name in config.under:
                evaluation.under(name, networks, envs.task)


def _folder(config: Config, split: Split, execution: AsyncOptions, trained: AsyncOptions) -> Path:
    """Where the results go by default."""
    folder = Path(config.policy) / "eval" / (TEST if split == TEST else "")
    folder /= config.task.name if config.task else ""
    folder /= "swapped" if config.swapped else ""
    folder /= REPEATED if config.repeated_noise else ""
    folder /= f"states/{Path(config.states).stem}" if config.states else ""
    if execution == trained:
        return folder
    return folder / (f"{execution.asynchronous}_delay{execution.delay}" if execution else "off")


def _check_instructions(
    config: Config, networks: BasePolicy | FinetunedPolicy, envs: TaskVectorEnv
) -> dict[str, str]:
    """What the policy is told instead of each instruction, nothing unless `swapped`.

    Raises:
        ValueError: if the policy needs instructions and there are none, or it does not know a word of one.
    """
    asked = envs.task.instructions
    check_instructions(networks, envs.task.name, asked)
    if not config.swapped:
        return {}
    if len(asked) < 2:
        raise ValueError(f"swapped=true: task {envs.task.name} has no other instruction to tell the policy")
    return dict(zip(asked, [*asked[1:], asked[0]], strict=True))


@dataclass(frozen=True)
class _Evaluation:
    """What all evaluations of a command share."""

    config: Config
    initial: InitialStates
    out: Path
    execution: AsyncOptions
    facts: Mapping[str, Any]
    """Written beside each result."""
    told: Mapping[str, str]
    """What the policy is told instead of each instruction."""

    def both(self, networks: BasePolicy | FinetunedPolicy, envs: TaskVectorEnv) -> None:
        """Evaluate a policy and its base."""
        outcomes, summaries = self._outcomes(networks, envs)
        write_evaluation(self.out, self.initial, outcomes, summaries, **self.facts)
        for name, result in summaries.items():
            print(f"  {name:<{max(map(len, summaries))}}  {_rate(result)}  {Motion.of(outcomes[name])}")
            for text, one in by_instruction(outcomes[name], result.fingerprint).items():
                print(f"         {_rate(one)}  {text}")
        print(f"  outcomes per episode: {self.out / 'episodes.csv'}")

    def under(self, disturbance: str, networks: BasePolicy | FinetunedPolicy, task: TaskConfig) -> None:
        """Evaluate a policy and its base in the disturbed task, and print a row of the table."""
        kind = partial(DisturbedEnv, disturbance=disturbance, seed=self.config.seed)
        envs = make_vector_env(task, self.config.num_envs, kind)
        try:
            outcomes, summaries = self._outcomes(networks, envs)
        finally:
            envs.close()
        text = DISTURBANCES[disturbance].text
        folder = self.out / UNDER / disturbance
        write_evaluation(folder, self.initial, outcomes, summaries, disturbance=text, **self.facts)
        results = "  ".join(f"{name} {_success(result)}" for name, result in summaries.items())
        print(f"  under {disturbance:<8} {results}  {text}")

    def saved(self, saved: list[tuple[Path, Saved]], envs: TaskVectorEnv, device: torch.device) -> None:
        """Evaluate each saved policy of a run; those already evaluated in the same way are skipped."""
        config, initial, out = self.config, self.initial, self.out
        for path, at in saved:
            count = config.episodes if at is saved[-1][1] else config.curve_episodes or config.episodes
            states = initial.states[:count]
            target = record_path(out, at)
            with as_user_errors():
                networks, _ = load_networks(path, device)
                record = read_record(target)
            how = {
                **self.facts,
                "fingerprint": fingerprint(networks),
                "states_sha256": initial.sha256,
            }
            # A policy that was executed at once has no entries of the execution.
            names = {*how, *asdict(self.execution)}
            same = {name: value for name, value in record.items() if name in names} == how
            if not same or len(record["success"]) != len(states):
                begun = time.monotonic()
                with progress(len(states), f"evaluate step {at.step}", "episodes") as show:
                    policy = _acting(partial(acting_policy, networks), envs, self.execution)
                    outcomes = evaluate(envs, policy, states, config.seed, show)
                write_record(out, at, initial, outcomes, eval_seconds=time.monotonic() - begun, **how)
            print(f"  step {at.step:<8} {_rate(summary_of(read_record(target)))}")
        print(f"  outcomes per episode: {out}/<step>.json")

    def _outcomes(
        self, networks: BasePolicy | FinetunedPolicy, envs: TaskVectorEnv
    ) -> tuple[dict[str, list[Outcome]], dict[str, Summary]]:
        """Outcomes and success of a policy and its base."""
        outcomes: dict[str, list[Outcome]] = {}
        summaries: dict[str, Summary] = {}
        states = self.initial.states[: self.config.episodes]
        for name, (make_policy, candidate) in _candidates(self.config, networks).items():
            with progress(len(states), f"evaluate {name}", "episodes") as show:
                policy = _acting(make_policy, envs, self.execution)
                outcomes[name] = evaluate(envs, policy, states, self.config.seed, show, self.told)
            summaries[name] = Summary.of(outcomes[name], fingerprint(candidate))
        return outcomes, summaries


def _candidates(
    config: Config, networks: BasePolicy | FinetunedPolicy
) -> dict[str, tuple[Callable[[int], ActingPolicy], BasePolicy | FinetunedPolicy]]:
    """What is compared, by name: makes it act in so many environments, and its networks."""
    if config.repeated_noise:
        base = base_of(networks)
        return {
            "base": (partial(ActingPolicy, base), base),
            REPEATED: (partial(RepeatedNoisePolicy, base), base),
        }
    compared = side_by_side(networks)
    return {name: (partial(acting_policy, candidate), candidate) for name, candidate in compared.items()}


def _acting(
    make_policy: Callable[[int], ActingPolicy], envs: TaskVectorEnv, execution: AsyncOptions
) -> ActingPolicy:
    """A policy that acts in the environments. Raises ValueError if it cannot act asynchronously."""
    policy = make_policy(envs.num_envs)
    execute_asynchronously(policy, execution, repeated_in_hold(envs.action_spec))
    return policy


def _rate(result: Summary) -> str:
    return f"success {_success(result)}  {result.mean_length:.0f} steps"


def _success(result: Summary) -> str:
    low, high = result.interval
    return f"{result.success:.3f}  95 % [{low:.3f}, {high:.3f}]"
