"""Run everything from end to end: demonstrations, a weak base policy, RL on top, evaluation, report.

Every stage is one of the other commands with the settings below. Finished stages are skipped, so the same
command resumes a stopped demo.
"""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from robot_rl.cli.compose import compose, load_group
from robot_rl.cli.main import load_command
from robot_rl.envs.external.simulators import simulator_of
from robot_rl.envs.task import TaskConfig
from robot_rl.errors import UserError
from robot_rl.policies.store import fingerprint
from robot_rl.runs import open_run, write_run_record, write_text
from robot_rl.saved_policies.loading import load_networks


@dataclass
class Config:
    task: str = "lift"
    """Name of the task, as in configs/task/."""
    name: str = "demo"
    """Name of the demo's directory."""
    runs_dir: str = "runs"
    """Folder of that directory."""
    seed: int = 0
    """Seed of everything random."""
    episodes: int = 8
    """Demonstrations to collect."""
    noise: float = 0.3
    """Action noise of the expert."""
    skill: float = 1.0
    """Skill of the expert."""
    base_updates: int = 600
    """Gradient steps of the base policy."""
    base_width: int = 128
    """Width of the base policy's network."""
    rl_steps: int = 20_000
    """Environment steps of RL."""
    rl_warmup_steps: int = 1_000
    """The first of these steps, in which only the base acts."""
    eval_episodes: int = 100
    """Saved initial states to evaluate on."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto` for a GPU where there is one."""


def run(config: Config) -> None:
    if simulator := simulator_of(load_group("task", config.task, TaskConfig).env):
        raise UserError(
            f"task={config.task}: the demo ends with videos, and none are drawn of {simulator.name}'s tasks: "
            "use collect, train and eval, as in docs/libero.md"
        )
    home = Path(config.runs_dir) / config.name
    tuned = home / "tuned"
    # With other options the stages would go on with each other's files.
    open_run(home, asdict(config))
    stages = _Stages(home / "stages.json")
    for stage, command in stage_commands(config).items():
        with stages(stage):
            if stage != "eval" or not _is_evaluated(tuned, config.eval_episodes):
                _run(*command)
    record = json.loads((tuned / "run.json").read_text())
    write_run_record(tuned, **{**record, "wall_seconds": stages.total, "stages": stages.seconds})
    _run("report", f"run={tuned}")
    for name in ("report.html", "report.json"):
        shutil.copyfile(tuned / name, home / name)
    print(f"demo: all stages in {stages.total / 60:.1f} minutes; look at {home / 'report.html'}")


def stage_commands(config: Config) -> dict[str, list[str]]:
    """Command and arguments of each stage. README lists them for the default configuration."""
    home = Path(config.runs_dir) / config.name
    common = [f"task={config.task}", f"seed={config.seed}", f"data={home / 'data.zarr'}"]
    training = [*common, f"runs_dir={home}", f"device={config.device}"]
    demonstrations = [f"episodes={config.episodes}", f"noise={config.noise}", f"skill={config.skill}"]
    network = [f"base.width={config.base_width}", "base.inference_steps=5"]
    base = ["method=bc", "base=diffusion", "name=base", f"method.steps={config.base_updates}", *network]
    steps = [f"method.steps={config.rl_steps}", f"method.warmup_steps={config.rl_warmup_steps}"]
    tuned = ["method=residual_chunk", f"base={home / 'base'}", "name=tuned", *steps]
    evaluation = [f"episodes={config.eval_episodes}", f"seed={config.seed}", f"device={config.device}"]
    return {
        "collect": ["collect", *common, *demonstrations],
        "base": ["train", *training, *base],
        "tuned": ["train", *training, *tuned],
        "eval": ["eval", f"policy={home / 'tuned'}", *evaluation],
    }


def _run(name: str, *arguments: str) -> None:
    print(f"\n$ robot-rl {name} {' '.join(arguments)}", flush=True)
    command = load_command(name)
    command.run(compose(command, arguments))


def _is_evaluated(run: Path, episodes: int) -> bool:
    """Whether there are evaluation results of the current weights."""
    path = run / "eval" / "summary.json"
    if not path.is_file():
        return False
    summary = json.loads(path.read_text())
    current = fingerprint(load_networks(run)[0])
    return summary["episodes"] == episodes and summary["policies"]["tuned"]["fingerprint"] == current


class _Stages:
    """Seconds spent in each stage, including earlier runs of the command."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds: dict[str, float] = json.loads(path.read_text()) if path.is_file() else {}

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - start
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.path, json.dumps(self.seconds, indent=2) + "\n")
