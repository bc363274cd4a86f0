"""Makes the runs of a queue, some at once; whatever is stopped goes on when it is called again."""

import fcntl
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from robot_rl.bench.methods import commands
from robot_rl.bench.methods.crew import Crew, Stopped
from robot_rl.bench.methods.imitation import read_collection, timed_collection, write_evaluation
from robot_rl.bench.methods.protocol import Protocol
from robot_rl.bench.methods.queue import Planned
from robot_rl.bench.methods.record import write_result
from robot_rl.cli.progress import Progress
from robot_rl.errors import UserError
from robot_rl.evaluation.initial_states import TEST
from robot_rl.runs import write_text
from robot_rl.training.logger import read_metrics


class Fault(Exception):
    """A command failed for a reason that is no result: it is to be mended, and run again."""


class Runner:
    """Runs what is planned, in the order given."""

    def __init__(self, runs_dir: Path, results: Path, device: str, keep_open: int) -> None:
        self._runs_dir, self._results, self._device = runs_dir, results, device
        self._crew = Crew(keep_open)
        self._preparing: dict[str, threading.Lock] = {}
        self._now: dict[Planned, str] = {}

    def run(
        self, planned: Sequence[Planned], workers: int, stop: Callable[[], bool], show: Progress
    ) -> list[str]:
        """Make all runs, `workers` at once. Returns the faults; when stopped, what is left stays undone."""
        self._preparing = {run.protocol.task: threading.Lock() for run in planned}
        faults: list[str] = []
        done = 0
        with ThreadPoolExecutor(workers) as pool:
            waiting: dict[Future[dict[str, Any]], Planned] = {pool.submit(self._one, p): p for p in planned}
            try:
                while waiting:
                    finished, _ = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                    for future in finished:
                        run = waiting.pop(future)
                        done += 1
                        try:
                            show.note(_told(run, future.result()))
                        except Stopped:
                            done -= 1
                        except Fault as fault:
                            faults.append(f"{run.label}: {fault}")
                            show.note(faults[-1])
                    show.update(done, now=self._doing() if waiting else "done")
                    if stop():
                        self._crew.stop()
            except BaseException:
                self._crew.kill()
                raise
        return faults

    def _one(self, planned: Planned) -> dict[str, Any]:
        home = planned.home(self._runs_dir)
        with self._preparing[planned.protocol.task]:
            self._prepare(planned.protocol, home)
        run = home / planned.name
        _forget_failure(run / "run.json")
        if planned.entry.collect is not None:
            self._collect(planned, home)
        code = self._command(commands.train(planned, home, self._device), planned, home)
        if code != 0 and not _failure(run / "run.json"):
            raise _fault(code, _log(planned, home))
        measured_afterwards = planned.entry.collect is not None or planned.protocol.split == TEST
        if measured_afterwards and code == 0:
            self._evaluate(planned, home)
        return write_result(planned, home, self._results)

    def _command(self, command: list[str], planned: Planned, home: Path) -> int:
        self._now[planned] = command[0]
        try:
            return self._crew.run(command, _log(planned, home))
        finally:
            del self._now[planned]

    def _collect(self, planned: Planned, home: Path) -> None:
        """The run's own demonstrations, unless they are there."""
        there = read_collection(planned, home)
        if there and there.complete:
            if there.options != list(planned.entry.collect or ()):
                raise Fault(
                    f"{commands.own_data(planned, home)} is of another protocol; remove it and "
                    f"{home / planned.name}, or choose another runs_dir=…"
                )
            return
        with timed_collection(planned, home) as collection:
            code = self._command(commands.collect(planned, home), planned, home)
            collection.complete = code == 0
        if code:
            raise _fault(code, _log(planned, home))

    def _evaluate(self, planned: Planned, home: Path) -> None:
        """Even if there is a result: training may have gone on since."""
        begun = time.monotonic()
        if code := self._command(commands.evaluate(planned, home, self._device), planned, home):
            raise _fault(code, _log(planned, home))
        if planned.entry.collect is not None:
            metrics = read_metrics(home / planned.name / "metrics.csv")
            write_evaluation(planned, home, metrics, time.monotonic() - begun)

    def _prepare(self, protocol: Protocol, home: Path) -> None:
        """Demonstrations and base of a task, unless they are there."""
        path = home / "preparation.json"
        wanted = protocol.preparation()
        if path.is_file() and json.loads(path.read_text()) != wanted:
            raise Fault(
                f"{home} has demonstrations and a base of another protocol; "
                "remove it, or choose another runs_dir=…"
            )
        home.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(wanted, indent=1) + "\n")
        if (commands.results_of(home / commands.BASE, protocol) / "summary.json").is_file():
            return
        if protocol.kept_base:
            shutil.copytree(protocol.kept_base, home / commands.BASE, dirs_exist_ok=True)
        for command in commands.prepare(protocol, home):
            if code := self._crew.run(command, home / "preparation.log"):
                raise _fault(code, home / "preparation.log")

    def _doing(self) -> str:
        """The runs in work and how far they are."""
        texts = []
        for planned, command in list(self._now.items()):
            metrics = planned.home(self._runs_dir) / planned.name / "metrics.csv"
            part = f"{_last_step(metrics) / planned.protocol.steps:.0%}"
            shown = part if planned.entry.collect is None and command == "train" else command
            texts.append(f"{planned.label} {shown}")
        return ", ".join(texts) or "preparing"


@contextmanager
def alone_in(runs_dir: Path) -> Iterator[int]:
    """Hold a work directory for one sitting; gives a descriptor that holds it for as long as it is open.

    Raises:
        UserError: another sitting, or a run that one left behind, is at work there.
    """
    runs_dir.mkdir(parents=True, exist_ok=True)
    with (runs_dir / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another `robot-rl bench methods` is at work in {runs_dir}: wait for it, or give this one "
                "its own runs_dir=…"
            ) from None
        yield file.fileno()


def _told(run: Planned, record: dict[str, Any]) -> str:
    if record["status"] == "failed":
        return f"{run.label}: failed, {record['reason']}"
    base, final = record["base"]["success"], record["final"]["success"]
    return f"{run.label}: base {base:.2f}, now {final:.2f}, {record['wall_seconds'] / 60:.1f} minutes"


def _failure(path: Path) -> bool:
    """Whether a run recorded that training failed."""
    return path.is_file() and "failed" in json.loads(path.read_text())


def _forget_failure(path: Path) -> None:
    """Its result was removed, so that it is tried again; it must fail anew to count."""
    if _failure(path):
        record = json.loads(path.read_text())
        del record["failed"]
        write_text(path, json.dumps(record, indent=2) + "\n")


def _log(planned: Planned, home: Path) -> Path:
    return home / f"{planned.name}.log"


def _fault(code: int, log: Path) -> Fault:
    lines = log.read_text(errors="replace").strip().splitlines()
    return Fault(f"exit code {code}, {lines[-1] if lines else 'without a word'} (more in {log})")


def _last_step(path: Path) -> int:
    """The step of the last whole row of a metrics.csv that is being written; 0 before there is one."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 400))
            rows = file.read().decode(errors="replace").split("\n")[:-1]
        return int(rows[-1].split(",")[0]) if rows else 0
    except (OSError, ValueError):
        return 0  # not begun, or its first line alone
