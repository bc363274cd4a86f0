"""A vector environment that steps its environments in several processes."""

import mmap
import os
import signal
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context, reduction
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from robot_rl.envs.env_group import (
    EnvFactory,
    EnvGroup,
    EnvInterface,
    EpisodeStart,
    StepBuffers,
    buffer_bytes,
)
from robot_rl.envs.vector import TaskVectorEnv
from robot_rl.hardware.plugins import load_plugins

_CLOSE_TIMEOUT = 5.0  # s for a worker to close its environments


class ProcessVectorEnv(TaskVectorEnv):
    """N environments in spawned processes, for environments that need the GIL throughout.

    Results are bit-identical to those of `ThreadVectorEnv` and do not depend on the number of workers. Step
    buffers are in unnamed shared memory, which is freed with its last process; pipes carry commands and
    saved states. A worker exits when its pipe closes, even if the parent was killed. As with all
    spawned processes, a script that creates one needs `if __name__ == "__main__":`.

    Args:
        env_fns: functions that create the environments; they are pickled for the workers, so no lambdas.
        workers: maximum number of processes; the number of cores if None.

    Raises:
        ValueError: if an environment or its `env_fn` raised one; with the same message.
        RuntimeError: if a worker died or raised another error. Everything is closed then.
    """

    def __init__(self, env_fns: Sequence[EnvFactory], workers: int | None = None) -> None:
        count = min(len(env_fns), workers or os.cpu_count() or 1)
        self._workers: list[_Worker] = []
        try:
            for share in np.array_split(np.arange(len(env_fns)), count):
                self._workers.append(_Worker.spawn({index: env_fns[index] for index in share.tolist()}))
            interface: EnvInterface = self._ask(dict.fromkeys(self._workers, ("build",)))[0]
            size = buffer_bytes(interface, len(env_fns))
            memory = os.memfd_create("step_buffers")
            try:
                os.truncate(memory, size)
                for worker in self._workers:
                    worker.attach(memory, interface, len(env_fns))
                super().__init__(len(env_fns), interface, mmap.mmap(memory, size))
            finally:
                os.close(memory)
        except BaseException:
            self.close()
            raise

    def get_states(self) -> list[np.ndarray]:
        replies: list[dict[int, np.ndarray]] = self._ask(dict.fromkeys(self._workers, ("get_states",)))
        return [state for states in replies for _, state in sorted(states.items())]

    def close_extras(self, **kwargs: Any) -> None:
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(_CLOSE_TIMEOUT)
            worker.process.kill()
            worker.process.join()
        self._workers = []

    def _reset_envs(self, starts: Mapping[int, EpisodeStart]) -> None:
        self._scatter("reset", starts)

    def _step_envs(self) -> None:
        self._ask(dict.fromkeys(self._workers, ("step",)))

    def _set_env_states(self, states: Mapping[int, np.ndarray]) -> None:
        self._scatter("set_states", states)

    def _scatter(self, command: str, arguments: Mapping[int, Any]) -> None:
        """Send each worker the arguments of its environments, if there are any."""
        shares = {w: {i: arguments[i] for i in w.indices if i in arguments} for w in self._workers}
        self._ask({worker: (command, share) for worker, share in shares.items() if share})

    def _ask(self, commands: Mapping["_Worker", tuple[Any, ...]]) -> list[Any]:
        """Send commands to workers, wait for all of them, and return their answers."""
        if not self._workers:
            raise RuntimeError("this vector environment is closed")
        try:
            for worker, command in commands.items():
                worker.tell(command)
            answers = [worker.answer() for worker in commands]
        except BaseException:  # a late answer would be taken for the answer to the next command
            self.close()
            raise
        for answer in answers:
            if isinstance(answer, _InvalidValue):
                raise ValueError(answer.message)
            if isinstance(answer, _Crash):
                self.close()
                raise RuntimeError(answer.report)
        return answers


@dataclass(frozen=True, eq=False)
class _Worker:
    """A worker process: its pipe, and the indices of its environments."""

    process: BaseProcess
    pipe: Connection
    indices: Sequence[int]

    @classmethod
    def spawn(cls, env_fns: Mapping[int, EnvFactory]) -> "_Worker":
        context = get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(there, env_fns), daemon=True)
        with there:  # afterwards only the process has that end, so its death closes the pipe
            process.start()
        return cls(process, here, list(env_fns))

    def attach(self, memory: int, interface: EnvInterface, num: int) -> None:
        """Give the worker the step buffers of all `num` environments, in an unnamed file."""
        self.tell(("attach", interface, num))
        reduction.send_handle(self.pipe, memory, self.process.pid)
        self.answer()

    def tell(self, command: tuple[Any, ...]) -> None:
        try:
            self.pipe.send(command)
        except OSError:
            raise self._loss() from None

    def answer(self) -> Any:
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            raise self._loss() from None

    def _loss(self) -> RuntimeError:
        self.process.join(1.0)
        code = self.process.exitcode
        name = f" ({signal.Signals(-code).name})" if code is not None and code < 0 else ""
        indices = f"environment {self.indices[0]}" + (
            f" to {self.indices[-1]}" if len(self.indices) > 1 else ""
        )
        return RuntimeError(f"the process of {indices} has died: exit code {code}{name}")


@dataclass(frozen=True)
class _InvalidValue:
    """A ValueError in a worker."""

    message: str


@dataclass(frozen=True)
class _Crash:
    """Any other error in a worker."""

    report: str


def _work(pipe: Connection, env_fns: Mapping[int, EnvFactory]) -> None:
    """Main function of a worker: executes commands until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent, which may save first
    warnings.simplefilter("ignore")  # the parent warns once for all environments
    group: EnvGroup | None = None
    with suppress(EOFError, ConnectionError):
        while True:
            command, *arguments = pipe.recv()
            answer: Any = None
            try:
                if group is None:
                    load_plugins()  # a spawned process does not inherit them
                    group = EnvGroup(env_fns)
                    answer = group.interface()
                elif command == "attach":
                    group.buffers = _mapped(reduction.recv_handle(pipe), *arguments)
                else:
                    answer = getattr(group, command)(*arguments)
            except ValueError as error:
                answer = _InvalidValue(str(error))
            except Exception:
                answer = _Crash(traceback.format_exc())
            pipe.send(answer)
    if group is not None:
        group.close()


def _mapped(memory: int, interface: EnvInterface, num: int) -> StepBuffers:
    with open(memory, "r+b") as file:
        return StepBuffers.in_memory(mmap.mmap(file.fileno(), 0), interface, num)
