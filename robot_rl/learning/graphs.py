"""A learner's whole update as CUDA graphs: one launch in place of hundreds.

At these sizes a GPU is done with a kernel before the host has launched the next one. A graph replays
all kernels of an update from fixed memory, so a batch is copied into buffers that the graph reads, and
an update must do the same each time: there is one graph for each kind of update that a learner makes
(with its actor's step or without), and none before the critics are warm.
"""

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from robot_rl.data.replay import Batch

WARM_UPS = 3
"""Updates that run as usual before one is captured: optimisers and libraries make their memory then."""


def graphed(learner: Any) -> Any:
    """The learner itself, or on a GPU, if it says what kind its updates are, one that replays graphs."""
    on_gpu = learner.device.type == "cuda"
    return GraphedLearner(learner) if on_gpu and hasattr(learner, "kind") else learner


class GraphedLearner:
    """Makes a learner's updates by replaying graphs of them.

    Its updates must not look at a value of the device, draw only from `learner.generator`, which is on
    the device, and depend on nothing of the host but `learner.kind()`.
    """

    def __init__(self, learner: Any) -> None:
        self.learner = learner
        self._seen: dict[Hashable, int] = {}
        self._graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, Batch, dict[str, Tensor]]] = {}
        for optimizer in learner.optimizers():
            for group in optimizer.param_groups:
                group["capturable"] = True

    @property
    def updates(self) -> int:
        """Updates that were made."""
        return int(self.learner.updates)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """As the learner's; the metrics are overwritten by the next update of the same kind."""
        key = (self.learner.kind(), *((name, tuple(value.shape)) for name, value in batch.items()))
        if key in self._graphs:
            graph, inputs, metrics = self._graphs[key]
            for name, value in batch.items():
                inputs[name].copy_(value, non_blocking=True)
            graph.replay()
            self.learner.updates += 1
            return metrics
        self._seen[key] = self._seen.get(key, 0) + 1
        if self._seen[key] <= WARM_UPS:
            return self._aside(batch)
        return self._capture(key, batch)

    def state_dict(self) -> dict[str, Any]:
        return self.learner.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Optimisers load new tensors, so what was captured is void."""
        self._graphs.clear()
        self._seen.clear()
        self.learner.load_state_dict(state)

    def _aside(self, batch: Batch) -> dict[str, Tensor]:
        """An update on a stream of its own, as capturing demands of what comes before it."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            metrics = self.learner.update(batch)
        torch.cuda.current_stream().wait_stream(stream)
        return metrics

    def _capture(self, key: Hashable, batch: Batch) -> dict[str, Tensor]:
        """Capture an update of this kind, then make it: capturing computes nothing."""
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.learner.generator)
        inputs = {name: value.clone() for name, value in batch.items()}
        with torch.cuda.graph(graph):
            metrics = self.learner.update(inputs)
        self._graphs[key] = graph, inputs, metrics
        graph.replay()
        return metrics
