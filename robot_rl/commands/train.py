"""Train a base policy (method=bc) or improve one by reinforcement learning (method=residual_chunk, …).

A run writes to `runs/<name>/`: configuration, metrics.csv, TensorBoard events and checkpoints.
Ctrl-C saves a checkpoint; the same command resumes from it, exactly.
"""

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from robot_rl.cli.progress import ProgressReporter
from robot_rl.cli.progress import progress as progress_bar
from robot_rl.cli.signals import stop_on_signal
from robot_rl.commands import _train_config
from robot_rl.commands._train_config import Config, check_options, output_directory, resolved
from robot_rl.data.dataset import Dataset
from robot_rl.envs.external.process import EnvironmentLost
from robot_rl.envs.robot_task import RobotTask, RobotTaskConfig
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.vector import TaskVectorEnv
from robot_rl.errors import ServerLost, UserError, as_user_errors
from robot_rl.evaluation.policy_snapshots import keep_policy
from robot_rl.factory import make_vector_env
from robot_rl.hil.learner import train_hil
from robot_rl.imagination.config import ImaginationConfig
from robot_rl.launchers.lock import lock_folder
from robot_rl.launchers.software import installed_software
from robot_rl.learning.config import STEPS, ChunkConfig
from robot_rl.learning.distributed import Accelerated, Processes, ProcessLost, others_lost
from robot_rl.machine import keep_freed_memory
from robot_rl.methods.method import OfflineMethod, OffPolicyMethod, OnPolicyMethod
from robot_rl.methods.registry import Method, build_method
from robot_rl.policies.asynchronous import AsyncOptions
from robot_rl.policies.finetuned.finetuned_policy import save_finetuned
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
from robot_rl.training.context import RunInputs
from robot_rl.training.logger import RunLogger
from robot_rl.training.loop import Intervals, NotFinite, Run
from robot_rl.training.off_policy import train_off_policy
from robot_rl.training.offline import train_offline
from robot_rl.training.on_policy import train_on_policy
from robot_rl.training.periodic_evaluation import PeriodicEvaluation, TrainingClock
from robot_rl.training.provenance import current_code, describe_sessions
from robot_rl.workers.config import WorkersConfig
from robot_rl.workers.ray_vector import cluster_envs
from robot_rl.workers.training import train_with_workers

GROUPS = _train_config.GROUPS
Components = OfflineComponents | OnPolicyComponents | OffPolicyComponents


def run(config: Config) -> None:
    """Task → environments → base → agent → replay and sampler → learner → loop."""
    keep_freed_memory()
    directory = output_directory(config)
    started = now()
    code = current_code()  # now, since the checkout may change during the run
    clock = TrainingClock()
    with ExitStack() as closing:
        with as_user_errors():
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

        def snapshot(step: int) -> None:
            keep_policy(directory, step, logger.seconds, save_policy)

        def stopped() -> bool:
            return processes.any(stop())

        if main:
            # After the environments were started, so that none of their processes inherits it.
            closing.enter_context(lock_folder(directory, "robot-rl train", "name"))
        loop = Run(
            directory,
            logger,
            progress,
            stop=stopped,
            save_policy=save_policy,
            evaluate=evaluate,
            snapshot=snapshot,
            begin=begin,
            is_main=main,
        )
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
        asked = config.hil.instruction if config.hil else None
        robot = RobotTask(Dataset(Path(config.data)).environment, asked)
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
            write_text(
                run.directory / f"{method.config.name}.json", json.dumps(result.figures, indent=2) + "\n"
            )
            print(result.text)
        return True
    if isinstance(components, OnPolicyComponents):
        return train_on_policy(components, intervals, run, config.seed)
    assert isinstance(method, OffPolicyMethod)
    if config.hil:
        return train_hil(method, components, inputs, config.hil, intervals, run)
    if config.workers and not config.workers.lockstep:
        return train_with_workers(method, components, inputs, config.workers, intervals, run)
    _advise(config, components)
    return train_off_policy(method.config, components, intervals, run, config.seed)


def _advise(config: Config, components: OffPolicyComponents) -> None:
    """Say how a slow base is asked less, if it is asked at every step."""
    base, method = components.agent.policy.base, config.method
    every_step = isinstance(method, ChunkConfig) and method.windows == STEPS
    alone = not config.imagination and config.asynchronous == "off"
    if every_step and alone and (base.is_remote or base.spec.instruction):
        print(
            "the base is asked at every step, for the samples in the replay: method.windows=decisions asks "
            "it once per chunk",
            file=sys.stderr,
        )


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
