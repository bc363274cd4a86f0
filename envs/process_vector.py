"""Several environments stepped together, each share of them in a process of its own."""

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

from robot_rl.envs.slots import Interface, Maker, Rows, Slots, Start, row_bytes
from robot_rl.envs.vector import RobosuiteVectorEnv
from robot_rl.hardware.plugins import load_plugins

_FAREWELL = 5.0  # s that a worker has for closing its environments


class ProcessVectorEnv(RobosuiteVectorEnv):
    """N environments in spawned processes, for those that would not let each other run as threads.

    Results are those of `ThreadVectorEnv` to the bit and do not depend on the number of workers. What a
    step reads and writes lies in shared memory without a name, which goes with its last process; pipes
    carry commands and saved states. A worker goes when its pipe closes, however the process at the
    other end came to its end. As with all spawned processes, a script that makes one needs
    `if __name__ == "__main__":`.

    Args:
        makers: of the environments, one for each slot; they travel to the workers, so no lambdas.
        workers: most processes; as many as there are cores if None. Each has a share of the slots.

    Raises:
        ValueError: what an environment or its maker raised as one, in its words.
        RuntimeError: a worker died, or raised something else. Everything is closed then.
    """

    def __init__(self, makers: Sequence[Maker], workers: int | None = None) -> None:
        count = min(len(makers), workers or os.cpu_count() or 1)
        self._workers: list[_Worker] = []
        try:
            for share in np.array_split(np.arange(len(makers)), count):
                self._workers.append(_Worker.spawn({slot: makers[slot] for slot in share.tolist()}))
            interface: Interface = self._ask(dict.fromkeys(self._workers, ("build",)))[0]
            size = row_bytes(interface, len(makers))
            memory = os.memfd_create("slots")
            try:
                os.truncate(memory, size)
                for worker in self._workers:
                    worker.attach(memory, interface, len(makers))
                super().__init__(len(makers), interface, mmap.mmap(memory, size))
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
            worker.process.join(_FAREWELL)
            worker.process.kill()
            worker.process.join()
        self._workers = []

    def _reset_slots(self, starts: Mapping[int, Start]) -> None:
        self._share_out("reset", starts)

    def _step_slots(self) -> None:
        self._ask(dict.fromkeys(self._workers, ("step",)))

    def _set_slots(self, states: Mapping[int, np.ndarray]) -> None:
        self._share_out("set_states", states)

    def _share_out(self, what: str, jobs: Mapping[int, Any]) -> None:
        """Ask each worker to do its slots' jobs, if there are any."""
        shares = {w: {slot: jobs[slot] for slot in w.slots if slot in jobs} for w in self._workers}
        self._ask({worker: (what, share) for worker, share in shares.items() if share})

    def _ask(self, commands: Mapping["_Worker", tuple[Any, ...]]) -> list[Any]:
        """Have workers do something, all at once; their answers."""
        if not self._workers:
            raise RuntimeError("this vector environment is closed")
        try:
            for worker, command in commands.items():
                worker.tell(command)
            answers = [worker.answer() for worker in commands]
        except BaseException:  # an answer still to come would be taken for that to the next command
            self.close()
            raise
        for answer in answers:
            if isinstance(answer, _Refusal):
                raise ValueError(answer.message)
            if isinstance(answer, _Crash):
                self.close()
                raise RuntimeError(answer.report)
        return answers


@dataclass(frozen=True, eq=False)
class _Worker:
    """A process seen from outside: this end of its pipe, and its slots."""

    process: BaseProcess
    pipe: Connection
    slots: Sequence[int]

    @classmethod
    def spawn(cls, makers: Mapping[int, Maker]) -> "_Worker":
        context = get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(there, makers), daemon=True)
        with there:  # from then on the process alone has that end, and its death closes the pipe
            process.start()
        return cls(process, here, list(makers))

    def attach(self, memory: int, interface: Interface, num: int) -> None:
        """Give the worker the rows of all `num` slots, which lie in a file without a name."""
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
        slots = f"slot {self.slots[0]}" + (f" to {self.slots[-1]}" if len(self.slots) > 1 else "")
        return RuntimeError(f"the process of {slots} has died: exit code {code}{name}")


@dataclass(frozen=True)
class _Refusal:
    """A ValueError in a worker."""

    message: str


@dataclass(frozen=True)
class _Crash:
    """Any other error in a worker."""

    report: str


def _work(pipe: Connection, makers: Mapping[int, Maker]) -> None:
    """A worker's life: it does what it is told until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which may want to save
    warnings.simplefilter("ignore")  # once for all slots is enough, and up to the parent
    slots: Slots | None = None
    with suppress(EOFError, ConnectionError):
        while True:
            what, *arguments = pipe.recv()
            answer: Any = None
            try:
                if slots is None:
                    load_plugins()  # a spawned process knows none of its parent's
                    slots = Slots(makers)
                    answer = slots.interface()
                elif what == "attach":
                    slots.rows = _mapped(reduction.recv_handle(pipe), *arguments)
                else:
                    answer = getattr(slots, what)(*arguments)
            except ValueError as error:
                answer = _Refusal(str(error))
            except Exception:
                answer = _Crash(traceback.format_exc())
            pipe.send(answer)
    if slots is not None:
        slots.close()


def _mapped(memory: int, interface: Interface, num: int) -> Rows:
    with open(memory, "r+b") as file:
        return Rows.within(mmap.mmap(file.fileno(), 0), interface, num)
