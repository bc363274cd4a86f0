"""A pool of threads that run the physics of several environments without the GIL.

Python threads that each step an environment compete for the GIL whenever they return from the compiled
loop, and waking up takes longer than the Python in between. So one thread does all of the Python and
submits substep batches; the workers stay in compiled code, synchronise by POSIX semaphores and never
take the GIL.
"""

import threading
from collections import deque
from collections.abc import Generator, Sequence
from typing import Any, Final, TypeVar

import numpy as np
from numba import carray, njit

from robot_rl.envs.compiled import substep_batch
from robot_rl.envs.compiled.cache_key import DIGEST
from robot_rl.envs.compiled.symbols import sem_init, sem_post, sem_trywait, sem_wait

Array = np.ndarray
Result = TypeVar("Result")

_SEMAPHORE: Final = (np.int64, 4)  # room for a sem_t
_QUEUE: Final = np.dtype(
    [
        ("todo", *_SEMAPHORE),  # counts jobs submitted and not taken
        ("finished", *_SEMAPHORE),  # counts jobs done and not collected
        ("running", np.int64),  # jobs submitted and not collected; written by the caller's thread only
        ("stopped", np.bool_),
    ],
    align=True,
)
_JOB: Final = np.dtype(
    [
        ("submitted", *_SEMAPHORE),  # 1 from when it is submitted until a worker takes it
        ("done", *_SEMAPHORE),  # 1 from when it is done until it is collected
        ("batch", np.int64),  # address of a `SUBSTEP_BATCH`
    ],
    align=True,
)
_NO_QUEUE: Final = np.zeros(1, _QUEUE)
RUN, COLLECT, SERVE = 0, 1, 2  # tasks of `work`
# Substeps. Plain numbers would be compiled as two types, and `substep_batch.run` once for each.
_ALL, _PART = np.int64(1_000_000), np.int64(4)


def _compiled(sources: int) -> Any:
    @njit(nogil=True, cache=True, error_model="numpy")
    def work(task: int, queue: Array, jobs: Array, index: int) -> int:
        """Runs batches. One function for all tasks, since the loop in it takes long to compile.

        Args:
            task: RUN the job at `index`; COLLECT a job that is done, and run others until there is
                one; or SERVE until the queue is stopped.
            queue, jobs: array of one `_QUEUE`, and an array of `_JOB`.
            index: for RUN.

        Returns:
            the index of the job that was run or collected, -1 from SERVE.
        """
        assert sources
        if task == RUN:
            substep_batch.run(_batch(jobs, index), _ALL)
            return index
        if task == COLLECT:
            index = _collect(queue, jobs)
            queue[0].running -= 1
            return index
        while _serve(queue, jobs):
            pass
        return -1

    return work


@njit(error_model="numpy")
def _serve(queue: Array, jobs: Array) -> bool:
    """Waits for a job and runs it; returns False without running one if the queue is stopped."""
    while sem_wait(queue[0].todo.ctypes.data) != 0:  # interrupted by a signal
        pass
    if queue[0].stopped:
        return False
    index = _take(jobs, False)
    substep_batch.run(_batch(jobs, index), _ALL)
    sem_post(jobs[index].done.ctypes.data)
    sem_post(queue[0].finished.ctypes.data)
    return True


@njit(error_model="numpy")
def _collect(queue: Array, jobs: Array) -> int:
    """Index of a job that is done. Until there is one, runs a submitted job or waits."""
    todo, finished = queue[0].todo.ctypes.data, queue[0].finished.ctypes.data
    if sem_trywait(finished) != 0:
        if sem_trywait(todo) == 0:
            index = _take(jobs, False)
            done = False
            while not done and sem_trywait(finished) != 0:
                done = substep_batch.run(_batch(jobs, index), _PART)
            if done:
                return index
            # Another job is done. It comes first, since only this thread runs its Python. This job goes back.
            sem_post(jobs[index].submitted.ctypes.data)
            sem_post(todo)
        else:
            while sem_wait(finished) != 0:
                pass
    return _take(jobs, True)


@njit(error_model="numpy")
def _batch(jobs: Array, index: int) -> Any:
    batch = carray(substep_batch.pointer(jobs[index].batch), (1,), substep_batch.SUBSTEP_BATCH)
    return batch[0]


@njit(error_model="numpy")
def _take(jobs: Array, done: bool) -> int:
    """Takes a job that is submitted, or done, and returns its index. The caller knows that there is one."""
    while True:
        for i in range(jobs.size):
            semaphore = jobs[i].done.ctypes.data if done else jobs[i].submitted.ctypes.data
            if sem_trywait(semaphore) == 0:
                return i


work: Any = _compiled(DIGEST)


@njit(cache=True, error_model="numpy")
def _submit(queue: Array, jobs: Array, index: int) -> None:
    queue[0].running += 1
    sem_post(jobs[index].submitted.ctypes.data)
    sem_post(queue[0].todo.ctypes.data)


@njit(cache=True, error_model="numpy")
def _stop(queue: Array, workers: int) -> None:
    queue[0].stopped = True
    for _ in range(workers):
        sem_post(queue[0].todo.ctypes.data)


@njit(cache=True, error_model="numpy")
def _init_semaphores(queue: Array, jobs: Array) -> bool:
    """Creates the semaphores; False if the system has none."""
    failed = sem_init(queue[0].todo.ctypes.data, 0, 0) | sem_init(queue[0].finished.ctypes.data, 0, 0)
    for i in range(jobs.size):
        failed |= sem_init(jobs[i].submitted.ctypes.data, 0, 0) | sem_init(jobs[i].done.ctypes.data, 0, 0)
    return failed == 0


def single_job(batch: Array) -> Array:
    """The argument of `run` for an array of one `SUBSTEP_BATCH`, which must outlive it."""
    jobs = np.zeros(1, _JOB)
    jobs["batch"] = batch.ctypes.data
    return jobs


def run(jobs: Array) -> None:
    """Runs a `single_job` in this thread."""
    work(RUN, _NO_QUEUE, jobs, 0)


class WorkerPool:
    """Runs the substep batches of N environments in `threads` threads, one of which is the caller's.

    Args:
        batches: arrays of one `SUBSTEP_BATCH`, one per environment.
        threads: 1 or more.

    Raises:
        OSError: if the system has no unnamed semaphores (macOS has none).
    """

    def __init__(self, batches: Sequence[Array], threads: int) -> None:
        self._batches = batches  # kept alive
        self._queue = np.zeros(1, _QUEUE)
        self._jobs = np.zeros(len(batches), _JOB)
        self._jobs["batch"] = [array.ctypes.data for array in batches]
        if not _init_semaphores(self._queue, self._jobs):
            raise OSError("this system has no unnamed semaphores")
        self._threads = [
            threading.Thread(target=work, args=(SERVE, self._queue, self._jobs, 0), daemon=True)
            for _ in range(threads - 1)
        ]
        for thread in self._threads:
            thread.start()

    def drive(self, steppers: Sequence[Generator[None, None, Result]]) -> list[Result]:
        """Drives one stepper per environment to its end; a stepper yields when its batch is to be run.

        If one raises, batches that are running are waited for, and the other steppers are left as they are.

        Returns:
            the return values of the steppers.
        """
        results: dict[int, Result] = {}
        ready, queue = deque(range(len(steppers))), self._queue[0]
        try:
            while ready or queue["running"]:
                while ready:
                    index = ready.popleft()
                    try:
                        next(steppers[index])
                    except StopIteration as end:
                        results[index] = end.value
                    else:
                        _submit(self._queue, self._jobs, index)
                if queue["running"]:
                    ready.append(work(COLLECT, self._queue, self._jobs, 0))
        finally:
            # Compiled code counts `running`: Ctrl-C cannot come between a batch's end and its count.
            while queue["running"]:
                work(COLLECT, self._queue, self._jobs, 0)
        return [results[index] for index in range(len(steppers))]

    def close(self) -> None:
        """Stops the threads."""
        _stop(self._queue, len(self._threads))
        for thread in self._threads:
            thread.join()
        self._threads = []
