"""Requests for a chunk of the base policy, computed at once or in another thread."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.policies.bases.base_policy import Chunk


@dataclass(frozen=True)
class Answer:
    """What the base computes for B observations."""

    samples: Chunk
    """Whole chunks, [B, N, H, A]."""
    features: Tensor | None = None
    """Features [B, K, D] of the observations, as in `PolicyOutput`, if the policy reads them."""


Submit = Callable[[Callable[[], Answer]], "Future[Answer]"]
"""Begins to compute an answer."""


def compute_at_once(compute: Callable[[], Answer]) -> "Future[Answer]":
    """Compute in this thread, for simulated time, in which a chunk arrives after the given delay."""
    future: Future[Answer] = Future()
    future.set_result(compute())
    return future


def compute_in_a_thread(resources: ExitStack) -> Submit:
    """Compute in another thread, for real time; `resources` ends it."""
    worker = resources.enter_context(ThreadPoolExecutor(1, "policy", torch.set_num_threads, (1,)))
    # Started now, it does not inherit the priority of the one that commands.
    worker.submit(bool).result()
    return worker.submit


@dataclass
class Samples:
    """Samples of the base for one observation."""

    actions: Tensor
    """[N, H, A]."""
    noise: Tensor | None
    """[N, Hn, Dn]."""
    step: int
    """Control step of the observation, for which the first action is."""
    features: Tensor | None = None
    """Of the observation [K, D]."""

    def to(self, device: torch.device) -> "Samples":
        def moved(value: Tensor | None) -> Tensor | None:
            return None if value is None else value.to(device)

        return Samples(self.actions.to(device), moved(self.noise), self.step, moved(self.features))

    def as_request(self) -> "Request":
        """A request for these samples that has been answered."""
        chunk = Chunk(self.actions[None], None if self.noise is None else self.noise[None])
        answer = Answer(chunk, None if self.features is None else self.features[None])
        return Request(compute_at_once(lambda: answer), 0, self.step)


@dataclass
class Request:
    """A chunk that is being computed."""

    future: "Future[Answer]"
    row: int
    """Row of its environment in the batch."""
    step: int

    def result(self) -> Samples:
        """The computed samples, of which nothing else keeps a reference."""
        answer = self.future.result()
        parts = answer.samples.noise, answer.features
        noise, features = (None if part is None else part[self.row].clone() for part in parts)
        return Samples(answer.samples.actions[self.row].clone(), noise, self.step, features)
