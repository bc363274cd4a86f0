"""Waits for workers to start and to answer, and tells the user what happens to them."""

import sys
import time
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from robot_rl.errors import UserError

if TYPE_CHECKING:
    from ray import ObjectRef

_POLL: Final = 0.2
"""s between two checks of the time."""
_SAY_AFTER: Final = 20.0
"""s after which it is mentioned that none has started."""


def wait_for_start(ray: ModuleType, answers: "Sequence[ObjectRef]") -> "ObjectRef":
    """Wait for the first of these answers of new workers, for which there may be no free core yet."""
    mention = time.monotonic() + _SAY_AFTER
    while not (ready := ray.wait(list(answers), num_returns=1, timeout=_POLL)[0]):
        if time.monotonic() > mention:
            say("waiting for one to start: the cluster has no free core, or its machine is slow")
            mention = float("inf")
    return ready[0]


def worker_result(ray: ModuleType, answer: "ObjectRef", task: str, timeout: float | None = None) -> Any:
    """The answer of a worker.

    Args:
        ray: the module.
        answer: what a call of the worker returned.
        task: what workers do, for messages.
        timeout: s to wait for it; None for any time.

    Raises:
        UserError: if the worker says that it cannot.
        RayError: if it is lost, or does not answer in time.
    """
    try:
        return ray.get(answer, timeout=timeout)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ValueError):
            raise UserError(f"a worker cannot {task}: {error.cause}") from error
        raise RuntimeError(f"a worker failed: {error}") from error


def wait_for_first(ray: ModuleType, answers: "Sequence[ObjectRef]", task: str) -> None:
    """Wait until one of several new workers has started; `task` as for `worker_result`.

    Raises:
        UserError: if it cannot start.
    """
    first = wait_for_start(ray, answers)
    try:
        worker_result(ray, first, task)
    except ray.exceptions.RayError as error:
        raise lost_at_start(ray, error) from error


def lost_at_start(ray: ModuleType, error: Exception) -> UserError:
    """What a user is told whose worker was lost before it did anything."""
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return UserError(
            "Ray ended a worker, since its machine has hardly any memory left: use fewer workers or "
            "environments, or end other programs there"
        )
    return UserError("a worker was lost while it started: run the same command again")


def say(text: str) -> None:
    """Print a line about the workers."""
    print(f"workers: {text}", file=sys.stderr, flush=True)
