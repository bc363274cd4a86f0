"""Executes the runs of a queue, several in parallel; runs that were stopped are resumed next time."""

import json
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from robot_rl.bench.methods import command_lines
from robot_rl.bench.methods.bc_baseline import read_collection, timed_collection, write_evaluation
from robot_rl.bench.methods.protocol import Protocol
from robot_rl.bench.methods.queue import PlannedRun
from robot_rl.bench.methods.result_writer import write_result
from robot_rl.cli.progress import Progress
from robot_rl.evaluation.initial_states import TEST
from robot_rl.launchers.launcher import Launcher, NodesLost, Stopped, run_parallel
from robot_rl.runs import training_progress, write_text
from robot_rl.training.logger import read_metrics


class CommandFailed(Exception):
    """A command failed for a reason other than failed training; the run has no result and is tried again."""


class Runner:
    """Executes planned runs: collect, train, evaluate, write the result.

    Args:
        runs_dir: working directory.
        results: folder of the result files.
        device: device of training and evaluation.
        launcher: runs the commands.
    """

    def __init__(self, runs_dir: Path, results: Path, device: str, launcher: Launcher) -> None:
        self._runs_dir, self._results, self._device = runs_dir, results, device
        self._launcher = launcher
        self._preparing: dict[str, threading.Lock] = {}
        self._unprepared: dict[str, CommandFailed] = {}
        """Why tasks could not be prepared."""
        self._active: dict[PlannedRun, str] = {}

    def run(
        self, planned: Sequence[PlannedRun], workers: int, stop: Callable[[], bool], show: Progress
    ) -> list[str]:
        """Execute the runs in this order, `workers` in parallel, until `stop()`.

        Returns the messages of failed commands.
        """
        self._preparing = {run.protocol.task: threading.Lock() for run in planned}
        failures: list[str] = []
        done = 0

        def show_status() -> None:
            show.update(done, now=self._status() if done < len(planned) else "done")

        def note_result(run: PlannedRun, future: Future[dict[str, Any]]) -> None:
            nonlocal done
            try:
                show.note(_summary(run, future.result()))
            except Stopped:
                return
            except (CommandFailed, NodesLost, ValueError) as failure:
                # ValueError: a file of this run is damaged.
                failures.append(f"{run.label}: {failure}")
                show.note(failures[-1])
            done += 1

        run_parallel(self._launcher, planned, self._execute, workers, stop, note_result, show_status)
        return failures

    def _execute(self, planned: PlannedRun) -> dict[str, Any]:
        """Execute one run and return its result."""
        task_dir = planned.task_dir(self._runs_dir)
        with self._preparing[planned.protocol.task]:
            self._prepare_once(planned.protocol, task_dir)
        return self._execute_prepared(planned, task_dir)

    def _execute_prepared(self, planned: PlannedRun, task_dir: Path) -> dict[str, Any]:
        run = task_dir / planned.name
        _clear_failure(run / "run.json")
        if planned.entry.collect is not None:
            self._collect(planned, task_dir)
        code = self._command(command_lines.train_command(planned, task_dir, self._device), planned, task_dir)
        if code != 0 and not _has_failed(run / "run.json"):
            raise _command_failed(code, _log(planned, task_dir))
        evaluate_afterwards = planned.entry.collect is not None or planned.protocol.split == TEST
        if evaluate_afterwards and code == 0:
            self._evaluate(planned, task_dir)
        return write_result(planned, task_dir, self._results)

    def _command(self, command: list[str], planned: PlannedRun, task_dir: Path) -> int:
        self._active[planned] = command[0]
        try:
            return self._launcher.run(command, _log(planned, task_dir))
        finally:
            del self._active[planned]

    def _collect(self, planned: PlannedRun, task_dir: Path) -> None:
        """Collect the demonstrations of a behaviour-cloning baseline, unless they are complete."""
        previous = read_collection(planned, task_dir)
        if previous and previous.complete:
            if previous.options != list(planned.entry.collect or ()):
                raise CommandFailed(
                    f"{command_lines.collected_data(planned, task_dir)} belongs to another protocol; "
                    f"remove it and {task_dir / planned.name}, or choose another runs_dir=…"
                )
            return
        with timed_collection(planned, task_dir) as collection:
            code = self._command(command_lines.collect_command(planned, task_dir), planned, task_dir)
            collection.complete = code == 0
        if code:
            raise _command_failed(code, _log(planned, task_dir))

    def _evaluate(self, planned: PlannedRun, task_dir: Path) -> None:
        """Evaluate a finished run, also if it was evaluated before, since training may have continued."""
        begun = time.monotonic()
        if code := self._command(
            command_lines.eval_command(planned, task_dir, self._device), planned, task_dir
        ):
            raise _command_failed(code, _log(planned, task_dir))
        if planned.entry.collect is not None:
            metrics = read_metrics(task_dir / planned.name / "metrics.csv")
            write_evaluation(planned, task_dir, metrics, time.monotonic() - begun)

    def _prepare_once(self, protocol: Protocol, task_dir: Path) -> None:
        """Prepare a task; a failure is that of all its runs."""
        if failure := self._unprepared.get(protocol.task):
            raise failure
        try:
            self._prepare(protocol, task_dir)
        except CommandFailed as failure:
            self._unprepared[protocol.task] = failure
            raise

    def _prepare(self, protocol: Protocol, task_dir: Path) -> None:
        """Collect demonstrations and train the base of a task, unless they exist."""
        path = task_dir / "preparation.json"
        wanted = protocol.preparation()
        if path.is_file() and json.loads(path.read_text()) != wanted:
            raise CommandFailed(
                f"the demonstrations and the base in {task_dir} belong to another protocol; "
                "remove it, or choose another runs_dir=…"
            )
        task_dir.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(wanted, indent=1) + "\n")
        if (command_lines.eval_directory(task_dir / command_lines.BASE, protocol) / "summary.json").is_file():
            return
        if protocol.kept_base:
            shutil.copytree(protocol.kept_base, task_dir / command_lines.BASE, dirs_exist_ok=True)
        for command in command_lines.preparation_commands(protocol, task_dir):
            if code := self._launcher.run(command, task_dir / "preparation.log"):
                raise _command_failed(code, task_dir / "preparation.log")

    def _status(self) -> str:
        """Names and progress of the active runs."""
        texts = []
        for planned, command in list(self._active.items()):
            step, _ = training_progress(planned.task_dir(self._runs_dir) / planned.name)
            progress = f"{step / planned.protocol.steps:.0%}"
            shown = progress if planned.entry.collect is None and command == "train" else command
            texts.append(f"{planned.label} {shown}")
        return ", ".join(texts) or "preparing"


def _summary(run: PlannedRun, record: dict[str, Any]) -> str:
    if record["status"] == "failed":
        return f"{run.label}: failed, {record['reason']}"
    base, final = record["base"]["success"], record["final"]["success"]
    return f"{run.label}: base {base:.2f}, now {final:.2f}, {record['wall_seconds'] / 60:.1f} minutes"


def _has_failed(path: Path) -> bool:
    """Whether training failed, according to `run.json`."""
    return path.is_file() and "failed" in json.loads(path.read_text())


def _clear_failure(path: Path) -> None:
    """Remove the record of a failed training, whose result was removed so that it is run again."""
    if _has_failed(path):
        record = json.loads(path.read_text())
        del record["failed"]
        write_text(path, json.dumps(record, indent=2) + "\n")


def _log(planned: PlannedRun, task_dir: Path) -> Path:
    return task_dir / f"{planned.name}.log"


def _command_failed(code: int, log: Path) -> CommandFailed:
    lines = log.read_text(errors="replace").strip().splitlines()
    return CommandFailed(f"exit code {code}, {lines[-1] if lines else 'no output'} (more in {log})")
