"""Threads that run the stretches of several environments and never ask for Python's lock.

Python threads that each step an environment wait for one another whenever they come back from the
compiled loop, and waking up takes longer than the Python in between. So one thread does all of the
Python, and the others only take stretches of substeps that it has posted, until they are stopped.
"""

import threading
from collections import deque
from collections.abc import Generator, Sequence
from typing import Any, Final, TypeVar

import numpy as np
from numba import carray, njit

from robot_rl.envs.compiled import stretch
from robot_rl.envs.compiled.sources import DIGEST
from robot_rl.envs.compiled.symbols import sem_init, sem_post, sem_trywait, sem_wait

Array = np.ndarray
Result = TypeVar("Result")

_SEMAPHORE: Final = (np.int64, 4)  # room for a sem_t
_QUEUE: Final = np.dtype(
    [
        ("todo", *_SEMAPHORE),  # counts what is posted and not taken
        ("finished", *_SEMAPHORE),  # counts what is done and not collected
        ("running", np.int64),  # how many are posted and not collected; the caller's thread alone counts
        ("stopped", np.bool_),
    ],
    align=True,
)
_POST: Final = np.dtype(
    [
        ("posted", *_SEMAPHORE),  # 1 from when it is posted until somebody takes it
        ("done", *_SEMAPHORE),  # 1 from when it is done until it is collected
        ("stretch", np.int64),  # address of a `STRETCH`
    ],
    align=True,
)
_NO_QUEUE: Final = np.zeros(1, _QUEUE)
RUN, COLLECT, SERVE = 0, 1, 2  # what `work` is asked for
_ALL, _PART = 1_000_000, 4  # substeps


def _compiled(sources: int) -> Any:
    @njit(nogil=True, cache=True, error_model="numpy")
    def work(what: int, queue: Array, posts: Array, index: int) -> int:
        """Everything that runs stretches, in one function, since the loop in it takes long to compile.

        Args:
            what: RUN the one at `index`; COLLECT one that is done, running others until there is
                one; or SERVE until the queue is stopped.
            queue, posts: array of one `_QUEUE`, and an array of `_POST`.
            index: for RUN.

        Returns:
            the index of what was run or collected, -1 from SERVE.
        """
        assert sources
        if what == RUN:
            stretch.run(_stretch(posts, index), _ALL)
            return index
        if what == COLLECT:
            index = _collect(queue, posts)
            queue[0].running -= 1
            return index
        while _serve(queue, posts):
            pass
        return -1

    return work


@njit(error_model="numpy")
def _serve(queue: Array, posts: Array) -> bool:
    """Waits for a post and does what it asks; False, and nothing, if the queue is stopped."""
    while sem_wait(queue[0].todo.ctypes.data) != 0:  # interrupted by a signal
        pass
    if queue[0].stopped:
        return False
    index = _take(posts, False)
    stretch.run(_stretch(posts, index), _ALL)
    sem_post(posts[index].done.ctypes.data)
    sem_post(queue[0].finished.ctypes.data)
    return True


@njit(error_model="numpy")
def _collect(queue: Array, posts: Array) -> int:
    """Index of one that is done; until there is one, does what others ask, or waits."""
    todo, finished = queue[0].todo.ctypes.data, queue[0].finished.ctypes.data
    if sem_trywait(finished) != 0:
        if sem_trywait(todo) == 0:
            index = _take(posts, False)
            done = False
            while not done and sem_trywait(finished) != 0:
                done = stretch.run(_stretch(posts, index), _PART)
            if done:
                return index
            # Something else is done. That comes first: Python cannot be shared out, this can.
            sem_post(posts[index].posted.ctypes.data)
            sem_post(todo)
        else:
            while sem_wait(finished) != 0:
                pass
    return _take(posts, True)


@njit(error_model="numpy")
def _stretch(posts: Array, index: int) -> Any:
    return carray(stretch.pointer(posts[index].stretch), (1,), stretch.STRETCH)[0]


@njit(error_model="numpy")
def _take(posts: Array, done: bool) -> int:
    """Index of one that is posted, or `done`, which then is so no more; there is one."""
    while True:
        for i in range(posts.size):
            semaphore = posts[i].done.ctypes.data if done else posts[i].posted.ctypes.data
            if sem_trywait(semaphore) == 0:
                return i


work: Any = _compiled(DIGEST)


@njit(cache=True, error_model="numpy")
def _post(queue: Array, posts: Array, index: int) -> None:
    queue[0].running += 1
    sem_post(posts[index].posted.ctypes.data)
    sem_post(queue[0].todo.ctypes.data)


@njit(cache=True, error_model="numpy")
def _stop(queue: Array, workers: int) -> None:
    queue[0].stopped = True
    for _ in range(workers):
        sem_post(queue[0].todo.ctypes.data)


@njit(cache=True, error_model="numpy")
def _start(queue: Array, posts: Array) -> bool:
    """Makes the semaphores; False where the system has none."""
    failed = sem_init(queue[0].todo.ctypes.data, 0, 0) | sem_init(queue[0].finished.ctypes.data, 0, 0)
    for i in range(posts.size):
        failed |= sem_init(posts[i].posted.ctypes.data, 0, 0) | sem_init(posts[i].done.ctypes.data, 0, 0)
    return failed == 0


def alone(one: Array) -> Array:
    """What `run` takes of a stretch, an array of one `STRETCH` that must live as long."""
    posts = np.zeros(1, _POST)
    posts["stretch"] = one.ctypes.data
    return posts


def run(posts: Array) -> None:
    """Runs a stretch here and now."""
    work(RUN, _NO_QUEUE, posts, 0)


class Crew:
    """Runs the stretches of N environments in `threads` threads, of which the caller's is one.

    Args:
        stretches: arrays of one `STRETCH`, one per environment.
        threads: 1 or more.

    Raises:
        OSError: the system has no unnamed semaphores (macOS has none).
    """

    def __init__(self, stretches: Sequence[Array], threads: int) -> None:
        self._stretches = stretches  # kept alive
        self._queue = np.zeros(1, _QUEUE)
        self._posts = np.zeros(len(stretches), _POST)
        self._posts["stretch"] = [array.ctypes.data for array in stretches]
        if not _start(self._queue, self._posts):
            raise OSError("this system has no unnamed semaphores")
        self._threads = [
            threading.Thread(target=work, args=(SERVE, self._queue, self._posts, 0), daemon=True)
            for _ in range(threads - 1)
        ]
        for thread in self._threads:
            thread.start()

    def drive(self, steppers: Sequence[Generator[None, None, Result]]) -> list[Result]:
        """Drives one stepper per environment to its end; each yields when its stretch is to be run.

        If one raises, the stretches that are being run are waited for, and the others are left.

        Returns:
            what they return.
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
                        _post(self._queue, self._posts, index)
                if queue["running"]:
                    ready.append(work(COLLECT, self._queue, self._posts, 0))
        finally:
            # Counted where no Ctrl-C can come between a stretch's end and its count.
            while queue["running"]:
                work(COLLECT, self._queue, self._posts, 0)
        return [results[index] for index in range(len(steppers))]

    def close(self) -> None:
        """Ends the threads."""
        _stop(self._queue, len(self._threads))
        for thread in self._threads:
            thread.join()
        self._threads = []
