"""Train a base policy (method=bc) or improve one by reinforcement learning (method=residual_chunk, …).

A run writes to `runs/<name>/`: configuration, metrics.csv, TensorBoard events and checkpoints.
Ctrl-C saves a checkpoint; the same command resumes from it, exactly.
"""

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from robot_rl.cli.progress import ProgressReporter
from robot_rl.cli.progress import progress as progress_bar
from robot_rl.cli.signals import stop_on_signal
from robot_rl.data.dataset import Dataset
from robot_rl.envs.external.process import EnvironmentLost
from robot_rl.envs.robot_task import RobotTask, RobotTaskConfig
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.vector import TaskVectorEnv
from robot_rl.errors import ServerLost, UserError, mistakes
from robot_rl.evaluation.saved_policies import keep_policy
from robot_rl.factory import make_vector_env
from robot_rl.hil.config import SCRIPTED, HilConfig
from robot_rl.hil.config_check import check_hil_config
from robot_rl.hil.learner import train_hil
from robot_rl.imagination.config import (
    ImaginationConfig,
    LatentModelConfig,
    RemoteModelConfig,
    StateModelConfig,
)
from robot_rl.launchers.software import installed_software
from robot_rl.learning.config import STATE_ALONE, STEPS
from robot_rl.learning.processes import (
    AccelerateConfig,
    Accelerated,
    Processes,
    ProcessLost,
    launched_processes,
    others_lost,
)
from robot_rl.machine import keep_freed_memory
from robot_rl.methods.method import OfflineMethod, OffPolicyMethod, OnPolicyMethod
from robot_rl.methods.registry import METHODS, Method, build_method
from robot_rl.policies.asynchronous import AsyncOptions
from robot_rl.policies.finetuned.finetuned_policy import save_finetuned
from robot_rl.policies.registry import BASES
from robot_rl.policy_client.config import RemoteConfig
from robot_rl.runs import check_run, list_checkpoints, now, open_run, write_run_record, write_text
from robot_rl.saved_policies.loading import EXECUTION, choose_device
from robot_rl.training.components import (
    OfflineComponents,
    OffPolicyComponents,
    OnPolicyComponents,
    build_off_policy,
    build_offline,
    build_on_policy,
)
from robot_rl.training.context import RunBase, RunInputs
from robot_rl.training.logger import RunLogger
from robot_rl.training.loop import Intervals, NotFinite, Run
from robot_rl.training.off_policy import train_off_policy
from robot_rl.training.offline import train_offline
from robot_rl.training.on_policy import train_on_policy
from robot_rl.training.periodic_evaluation import PeriodicEvaluation, TrainingClock
from robot_rl.training.provenance import current_code, describe_sessions
from robot_rl.training.trackers import check_tracker
from robot_rl.workers.config import WorkersConfig, check_workers_config
from robot_rl.workers.ray_vector import cluster_envs
from robot_rl.workers.training import train_with_workers

GROUPS: dict[str, dict[str, type]] = {
    "task": {"robot": RobotTaskConfig, "*": TaskConfig},
    "method": {name: method.config_type for name, method in METHODS.items()},
    "hil": {"on": HilConfig},
    "imagination": {"state": StateModelConfig, "latent": LatentModelConfig, "remote": RemoteModelConfig},
    "workers": {"ray": WorkersConfig},
    "accelerate": {"on": AccelerateConfig},
    "base": {
        **{name: base.config for name, base in BASES.items()},
        "run": RunBase,
        "remote": RemoteConfig,
    },
}


Components = OfflineComponents | OnPolicyComponents | OffPolicyComponents


@dataclass
class Config:
    task: Any = None
    """Task to learn; `robot` for a real robot's, of which data=… says what is observed and done."""
    method: Any = None
    """Training method."""
    base: Any = None
    """Base policy to train (method=bc), or the run of one to improve or to train further, base=runs/…, or
    `remote` for one behind a policy server."""
    hil: Any = None
    """`on` for a separate actor process and human interventions."""
    imagination: Any = None
    """`state` for imagined transitions from a world model of states, learned during training, `latent` for
    those of a model of the base's features (method.encoder=base), or `remote` for those of a model in another
    process."""
    workers: Any = None
    """`ray` for environments in processes on the machines of a Ray cluster."""
    accelerate: Any = None
    """`on` to train a base policy in several processes, which torchrun starts, or with mixed precision."""
    data: str | None = None
    """Dataset of demonstrations."""
    name: str = "${task.name}_${method.name}_s${seed}"
    """Name of the run's directory."""
    runs_dir: str = "runs"
    """Folder of the runs."""
    seed: int = 0
    """Seed of everything random."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto` for a GPU where there is one."""
    threads: int = 1
    """CPU threads of torch; small networks gain little from more."""
    log_every: int = 200
    """Steps between rows of learning metrics."""
    checkpoint_every: int = 5000
    """Steps between checkpoints."""
    eval_every: int = 0
    """Environment steps between evaluations on the task's validation states; 0 for none."""
    eval_episodes: int = 100
    """Number of validation states for such an evaluation."""
    save_every: int = 0
    """Environment steps between policies saved in `policies/`, for `robot-rl eval saved=true`; 0 for none."""
    logger: str = "tensorboard"
    """Where metrics are shown besides metrics.csv: `tensorboard`, `wandb` or `trackio`."""
    asynchronous: str = "off"
    """How a slow base acts, `naive`, `blend`, `prefix` or `guided`: what RL adds learns with the delay."""
    delay: int = 0
    """With asynchronous: control steps from an observation to the chunk that is computed from it."""
    accept: list[str] = field(default_factory=list)
    """Accepted differences between the recorded and the current environment, e.g. [versions]."""

    def __post_init__(self) -> None:
        check_tracker(self.logger)
        for name in ("log_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: choose 1 or more steps")
        for name in ("eval_every", "save_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: it cannot be negative")
        AsyncOptions(self.asynchronous, self.delay)


def output_directory(config: Config) -> Path:
    """Directory of the run."""
    return Path(config.runs_dir) / config.name


def run(config: Config) -> None:
    """Task → environments → base → agent → replay and sampler → learner → loop."""
    keep_freed_memory()
    directory = output_directory(config)
    started = now()
    code = current_code()  # now, since the checkout may change during the run
    clock = TrainingClock()
    with ExitStack() as closing:
        with mistakes():
            processes, device = _start(config, closing)
            content = resolved(config)
            check_run(directory, content)
            if config.accelerate:
                _check_same(directory, content, processes)
            inputs = _run_inputs(config, device, processes, closing)
            method = build_method(config.method)
            components = build(method, inputs, closing, config.imagination)
            save_policy = policy_saver(method, components, inputs.execution)
            evaluation = _evaluation(config, inputs, save_policy, clock, closing)
        main = processes.is_main
        facts = _facts(config, device, processes)
        logger = RunLogger(directory, clock=clock, tracker=config.logger, config=content)
        closing.callback(logger.close)
        stop = closing.enter_context(stop_on_signal())
        progress = _progress(config, method, processes, closing) if main else _Silent()

        def record(**more: Any) -> None:
            if main:
                write_run_record(directory, started, **facts, **more)

        def begin() -> None:
            # Before the first step, so that a run that is killed has a record too.
            open_run(directory, content)
            facts.update(describe_sessions(directory, code))
            record()

        def evaluate(step: int) -> None:
            if evaluation:
                progress.update(step, evaluated=evaluation.evaluate(step, directory, logger).success)

        def keep(step: int) -> None:
            keep_policy(directory, step, logger.seconds, save_policy)

        def stopped() -> bool:
            return processes.any(stop())

        loop = Run(directory, logger, progress, stopped, save_policy, evaluate, keep, begin, main)
        try:
            with others_lost(processes):
                finished = train(config, method, components, inputs, loop)
        except NotFinite as error:
            record(failed=str(error))
            raise UserError(f"{error}; a smaller learning rate may help") from error
        except (ServerLost, ProcessLost, EnvironmentLost) as error:
            record(failed=str(error))
            raise
        # Before another signal would end the process at once.
        env_steps = 0
        if not isinstance(method, OfflineMethod):
            # One that was stopped has made fewer than it is to make.
            env_steps = min(int(list_checkpoints(directory / "checkpoints")[-1].name), config.method.steps)
        record(env_steps=env_steps, wall_seconds=logger.seconds, finished=finished)
    processes.close()
    _report_end(config, method, finished=finished, shown=main)


def _start(config: Config, closing: ExitStack) -> tuple[Processes, torch.device]:
    """Check the options, and join the other processes of the run if there are any."""
    device = choose_device(config.device)
    check_options(config)
    processes = Processes()
    if config.accelerate:
        processes = Accelerated(config.accelerate, device)
        device = processes.device
    closing.enter_context(others_lost(processes))
    torch.set_num_threads(config.threads)
    return processes, device


def _progress(config: Config, method: Method, processes: Processes, closing: ExitStack) -> ProgressReporter:
    if config.accelerate:
        print(f"accelerate: {processes.count} processes", file=sys.stderr)
    unit = "updates" if isinstance(method, OfflineMethod) else "env steps"
    return closing.enter_context(progress_bar(config.method.steps, config.name, unit))


class _Silent:
    """Progress of a process that is not the main one."""

    def update(self, step: int, **figures: float) -> None: ...


def _check_same(directory: Path, content: Mapping[str, Any], processes: Processes) -> None:
    """Check that all processes train the same run, before they build it together.

    Raises:
        UserError: if they differ, or one has ended.
    """
    newest = [path.name for path in list_checkpoints(directory / "checkpoints")[-1:]]
    processes.check_equal(
        configuration=json.dumps(content, sort_keys=True),
        newest_checkpoint=json.dumps(newest),
        software=json.dumps(installed_software(), sort_keys=True),
    )


def _run_inputs(config: Config, device: torch.device, processes: Processes, closing: ExitStack) -> RunInputs:
    """What a run is made from besides its method."""
    make_envs = _one_environment if config.hil else environments(config.workers, closing)
    robot = None
    if isinstance(config.task, RobotTaskConfig):
        assert config.data is not None
        robot = RobotTask(Dataset(Path(config.data)).environment)
    return RunInputs(
        robot.task if robot else config.task,
        config.base,
        config.data,
        config.seed,
        device,
        tuple(config.accept),
        make_envs,
        robot,
        AsyncOptions(config.asynchronous, config.delay),
        uneven=config.hil is not None,
        processes=processes,
    )


def _evaluation(
    config: Config,
    inputs: RunInputs,
    save_policy: Callable[[Path], None],
    clock: TrainingClock,
    closing: ExitStack,
) -> PeriodicEvaluation | None:
    """The evaluation during training, if it is asked for."""
    if not config.eval_every:
        return None
    evaluation = PeriodicEvaluation(
        config.task, config.eval_episodes, inputs.device, save_policy, clock, inputs.execution
    )
    closing.callback(evaluation.close)
    return evaluation


def environments(
    workers: WorkersConfig | None, closing: ExitStack
) -> Callable[[TaskConfig, int], TaskVectorEnv]:
    """What makes the environments of a run: in this process, or on a cluster, which `closing` leaves."""
    if workers is None:
        return make_vector_env
    make_envs = cluster_envs(workers, closing)
    if workers.lockstep:
        return make_envs
    return _one_environment


def _one_environment(task: TaskConfig, num_envs: int) -> TaskVectorEnv:
    """Actors and workers have their own environments; the learner needs one for its description."""
    return make_vector_env(task, 1)


def build(
    method: Method, inputs: RunInputs, closing: ExitStack, imagination: ImaginationConfig | None
) -> Components:
    """The components of a run; `closing` closes what they open."""
    if isinstance(method, OfflineMethod):
        return build_offline(method, inputs)
    if isinstance(method, OnPolicyMethod):
        return build_on_policy(method, inputs, closing)
    return build_off_policy(method, inputs, closing, imagination)


def train(config: Config, method: Method, components: Components, inputs: RunInputs, run: Run) -> bool:
    """Run the training loop of the method. Returns True when all steps are done, False when stopped."""
    every = (config.log_every, config.checkpoint_every, config.eval_every, config.save_every)
    intervals = Intervals(config.method.steps, *every)
    if isinstance(components, OfflineComponents):
        assert isinstance(method, OfflineMethod)
        if not train_offline(components.learner, intervals, run):
            return False
        if (result := components.learner.finish()) and run.is_main:
            write_text(run.directory / f"{method.name}.json", json.dumps(result.figures, indent=2) + "\n")
            print(result.text)
        return True
    if isinstance(components, OnPolicyComponents):
        return train_on_policy(components, intervals, run, config.seed)
    assert isinstance(method, OffPolicyMethod)
    if config.hil:
        return train_hil(method, components, inputs, config.hil, intervals, run)
    if config.workers and not config.workers.lockstep:
        return train_with_workers(method, components, inputs, config.workers, intervals, run)
    return train_off_policy(method.config, components, intervals, run, config.seed)


def policy_saver(method: Method, components: Components, execution: AsyncOptions) -> Callable[[Path], None]:
    """Return a function that writes the current policy to `policy/` of a directory."""
    if isinstance(components, OfflineComponents):
        learner, environment = components.learner, components.environment
        return lambda directory: learner.save_policy(directory / "policy", environment)
    assert not isinstance(method, OfflineMethod)
    networks = components.agent.networks
    meta = {
        "environment": components.envs.describe(),
        "method": method.config.name,
        **({EXECUTION: asdict(execution)} if execution else {}),
    }
    return lambda directory: save_finetuned(networks, directory / "policy", meta)


def check_options(config: Config) -> None:
    """Raises ValueError for options that do not go together."""
    if config.asynchronous != "off":
        _check_asynchronous(config)
    _check_processes(config)
    if config.hil:
        check_hil_config(config.hil, config.method)
    _check_robot_task(config)
    if config.imagination and not issubclass(METHODS[config.method.name], OffPolicyMethod):
        raise ValueError(
            f"method={config.method.name} does not learn from a replay: leave imagination out, or use "
            "residual_chunk, expo, dsrl_na or residual"
        )
    if config.imagination and config.hil and config.hil.takeover_fails:
        raise ValueError(
            "hil.takeover_fails=true ends episodes where a person takes over, which a world model does not "
            "know: leave it or imagination out"
        )
    acts_elsewhere = config.hil or (config.workers and not config.workers.lockstep)
    if config.imagination and config.imagination.planning and acts_elsewhere:
        raise ValueError(
            "imagination.planning=true needs the model where the policy acts, which is another process here: "
            "leave it out"
        )
    if config.hil and config.workers:
        raise ValueError("hil=on has its own actors, each of which drives one arm: leave workers out")
    if not issubclass(METHODS[config.method.name], OfflineMethod):
        if config.workers:
            check_workers_config(config.workers, config.method, config.base)
        return
    if config.workers:
        raise ValueError(f"method={config.method.name} takes no environment steps: leave workers out")
    asked = next((name for name in ("eval_every", "save_every") if getattr(config, name)), None)
    if asked:
        raise ValueError(
            f"{asked} counts environment steps, and method={config.method.name} takes none: "
            "leave it out, and measure the result with `robot-rl eval`"
        )


def _check_robot_task(config: Config) -> None:
    method = METHODS[config.method.name]
    if not isinstance(config.task, RobotTaskConfig):
        acts = not issubclass(method, OfflineMethod) or method.acts
        recorded = Dataset(Path(config.data)).environment if config.data and acts else {"env": ""}
        if "env" not in recorded and not config.accept:
            raise ValueError(
                f"dataset {config.data} is of the robot {recorded['robot']}, and task={config.task.name} is "
                "simulated: add task=robot"
            )
        return
    if not config.data:
        raise ValueError("task=robot takes observations and actions from a dataset of the robot: add data=…")
    if issubclass(method, OfflineMethod):
        return
    if not config.hil:
        raise ValueError(
            "task=robot has no simulation to act in: add hil=on hil.robot=… (docs/interventions.md)"
        )
    if config.hil.operator == SCRIPTED:
        raise ValueError("hil.operator=scripted is an expert of simulated tasks: choose a device, or none")
    if config.eval_every:
        raise ValueError("eval_every evaluates in simulation, and task=robot has none: leave it out")


def _check_processes(config: Config) -> None:
    method = METHODS[config.method.name]
    distributes = issubclass(method, OfflineMethod) and method.distributes
    if config.accelerate and not distributes:
        raise ValueError(
            f"accelerate=on trains base policies (method=bc), not method={config.method.name}: leave it out"
        )
    if not config.accelerate and (count := launched_processes()) > 1:
        advice = "add accelerate=on" if distributes else f"start method={config.method.name} without torchrun"
        raise ValueError(f"{count} processes were started (WORLD_SIZE), which would train the same: {advice}")


def _check_asynchronous(config: Config) -> None:
    name = config.method.name
    if issubclass(METHODS[name], OfflineMethod):
        raise ValueError(
            f"asynchronous={config.asynchronous} is for methods that act, method={name} learns from data: "
            "leave it out here, and give it to `eval` and to the training around this base"
        )
    if config.workers and not config.workers.lockstep:
        raise ValueError("asynchronous=… is not there with workers that act yet: add workers.lockstep=true")
    if config.imagination:
        raise ValueError(
            "imagination asks the base at imagined states, without a delay: leave it or asynchronous=… out"
        )


def resolved(config: Config) -> dict[str, Any]:
    """Content of the run's `config.yaml`."""
    content = asdict(config)
    if config.asynchronous == "off":
        # Runs of earlier versions have no such options.
        del content["asynchronous"], content["delay"]
    if config.hil and config.hil.actors == 1:
        del content["hil"]["actors"]
    if not content["task"].get("randomize", True):
        del content["task"]["randomize"]
    if content["method"].get("windows") == STEPS:
        del content["method"]["windows"]
    if config.method.name == "residual_ppo" and content["method"]["encoder"] == STATE_ALONE:
        del content["method"]["encoder"]
    if config.workers and config.workers.lockstep:
        content["workers"] = None  # any number of them, and none, compute the same
    if config.data is not None:
        # So that a run is not resumed with a dataset that has changed.
        content["data_sha256"] = Dataset(Path(config.data)).sha256
    if content["method"].get("replay"):
        content["replay_sha256"] = Dataset(Path(content["method"]["replay"])).sha256
    elif "replay" in content["method"]:
        # Runs of earlier versions have no such options.
        del content["method"]["replay"], content["method"]["replay_ratio"]
    return content


def _report_end(config: Config, method: Method, *, finished: bool, shown: bool) -> None:
    """Print what to do next, if shown; raises KeyboardInterrupt if the run was stopped."""
    directory = output_directory(config)
    if not finished:
        if shown:
            print(f"{directory}: stopped and saved; the same command goes on from here", file=sys.stderr)
        raise KeyboardInterrupt
    next_step = method.next_step if isinstance(method, OfflineMethod) else OfflineMethod.next_step
    if isinstance(config.task, RobotTaskConfig) and next_step == OfflineMethod.next_step:
        next_step = "Measure it with `robot-rl deploy policy={run} robot=ADDRESS`"
    if shown:
        print(f"{directory}: done. {next_step.format(run=directory)}")


def _facts(config: Config, device: torch.device, processes: Processes) -> dict[str, Any]:
    """Facts in the record of a run that do not depend on how it ended."""
    return {
        "method": config.method.name,
        "task": config.task.name,
        "seed": config.seed,
        "device": str(device),
        **({"processes": processes.count} if config.accelerate else {}),
    }
