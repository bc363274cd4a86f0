"""One or several processes that train a policy together, with Hugging Face accelerate.

All processes draw the same batch and compute the gradient of a part of it. So a run computes the same with
any number of processes, apart from the order of sums.
"""

import hashlib
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from robot_rl.errors import UserError
from robot_rl.policies.bases.imitation import ImitationPolicy, Totals
from robot_rl.policies.nets import denoisers, film_resnet

if TYPE_CHECKING:
    from accelerate import Accelerator

_PRECISIONS = ("no", "bf16")
_BLOCKS = (
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
    denoisers.FiLMBlock,
    denoisers.ResidualBlock,
    film_resnet.FiLMBlock,
)
"""Modules whose weights FSDP gathers one after another; all others are gathered together."""


@dataclass
class AccelerateConfig:
    """Training in several processes, started by torchrun."""

    mixed_precision: str = "no"
    """`bf16` to compute in bfloat16 where torch's autocast does; weights, their average and the optimiser
    stay in float32. `no` for float32 alone."""
    accumulate: int = 1
    """Parts into which each process divides its share of a batch, one after another, to save memory."""
    fsdp: bool = False
    """Whether each process keeps only its part of weights, average and optimiser (FSDP2), for models that do
    not fit on one GPU."""

    def __post_init__(self) -> None:
        if self.mixed_precision not in _PRECISIONS:
            raise ValueError(
                f"accelerate.mixed_precision={self.mixed_precision}: choose {' or '.join(_PRECISIONS)}"
            )
        if self.accumulate < 1:
            raise ValueError(f"accelerate.accumulate={self.accumulate}: choose 1 or more")


class ProcessLost(UserError):
    """Another process of the run has ended."""


def launched_processes() -> int:
    """Number of processes that torchrun has started, 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


class BatchLoss(nn.Module):
    """A policy's `partial_loss` as a module, since DDP and FSDP wrap what is called."""

    def __init__(self, policy: ImitationPolicy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, batch: Mapping[str, Tensor], totals: Totals) -> Tensor:
        return self.policy.partial_loss(batch, totals)


class Processes:
    """The one process of a run without `accelerate`; base class of those with it.

    Attributes:
        is_main: whether this is the process that writes files and prints.
        count: number of processes.
        reads_dataset: whether images are read from the dataset for each batch, not kept in memory.
        shards: whether each process has only its part of the weights.
    """

    is_main = True
    count = 1
    reads_dataset = False
    shards = False

    def parts(self, batch_size: int) -> list[slice]:
        """Rows of a batch that this process computes, one after another."""
        return [slice(0, batch_size)]

    def prepare(self, policy: ImitationPolicy, average: nn.Module) -> nn.Module:
        """Wrap a policy before its optimiser is made; with FSDP, shard it and its average.

        The policy is on its device, with FSDP on the CPU.
        """
        del average
        return BatchLoss(policy)

    def backward(self, loss: nn.Module, parts: Iterable[Mapping[str, Tensor]], totals: Totals) -> Tensor:
        """Compute gradients of the whole batch's loss from the parts of each process; returns the loss."""
        (batch,) = parts
        value: Tensor = loss(batch, totals)
        value.backward()
        return value.detach()

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return flag

    def check_equal(self, **values: str) -> None:
        """Check that these values are the same in all processes, and wait for all of them.

        Raises:
            UserError: if one differs, with its name.
        """

    def close(self) -> None:
        """Leave the group of processes."""


class Accelerated(Processes):
    """Processes that torchrun has started.

    Raises:
        ValueError: if accelerate is not installed, they were started in another way, or the device has a
            number.
    """

    reads_dataset = True

    def __init__(self, config: AccelerateConfig, device: torch.device) -> None:
        # torch declares `index` as an int, and has None without a number.
        if str(device) != device.type:
            raise ValueError(
                f"device={device}: accelerate=on chooses among the GPUs that a process sees; leave the "
                f"number out, and set CUDA_VISIBLE_DEVICES={device.index}"
            )
        self._config = config
        self._accelerator = _make_accelerator(device)
        self.count = self._accelerator.num_processes
        self.shards = config.fsdp and self.count > 1
        self.is_main = self._accelerator.is_main_process
        self.device = self._accelerator.device
        # Flags and checks do not wait for the work of a GPU.
        self._control = torch.distributed.new_group(backend="gloo") if self.count > 1 else None

    def parts(self, batch_size: int) -> list[slice]:
        """See `Processes.parts`. Raises ValueError if the batch cannot be divided equally."""
        steps = self._config.accumulate
        if batch_size % (self.count * steps):
            raise ValueError(
                f"method.batch_size={batch_size} cannot be divided by {self.count} processes times "
                f"accelerate.accumulate={steps}: choose a multiple of {self.count * steps}"
            )
        size = batch_size // (self.count * steps)
        first = self._accelerator.process_index * steps
        return [slice(part * size, (part + 1) * size) for part in range(first, first + steps)]

    def prepare(self, policy: ImitationPolicy, average: nn.Module) -> nn.Module:
        loss = BatchLoss(policy)
        if not self.shards:
            wrapped: nn.Module = self._accelerator.prepare_model(loss)
            return wrapped
        # accelerate's own FSDP2 is for GPUs alone: on CPUs it leaves the model whole without a word.
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(self.device.type, (self.count,))
        for root in (loss, average):
            # Block by block from the CPU: one whole block at a time is on the device.
            for block in [module for module in root.modules() if isinstance(module, _BLOCKS)]:
                fully_shard(block, mesh=mesh)
            fully_shard(root, mesh=mesh)
        return loss

    def backward(self, loss: nn.Module, parts: Iterable[Mapping[str, Tensor]], totals: Totals) -> Tensor:
        whole = torch.zeros((), device=self.device)
        for number, batch in enumerate(parts, 1):
            # FSDP sums after each part: to keep whole gradients would need the memory that it saves.
            waits = number < self._config.accumulate and not self.shards
            with self._accelerator.no_sync(loss) if waits else nullcontext():
                with self._autocast():
                    value = loss(batch, totals)
                # DDP and FSDP average gradients over the processes, and the loss is a sum.
                (value * self.count).backward()
            whole += value.detach()
        summed: Tensor = self._accelerator.reduce(whole, "sum")
        return summed

    def any(self, flag: bool) -> bool:
        if self._control is None:
            return flag
        shared = torch.tensor(int(flag))
        torch.distributed.all_reduce(shared, torch.distributed.ReduceOp.MAX, group=self._control)
        return bool(shared)

    def check_equal(self, **values: str) -> None:
        if self._control is None:
            return
        digests = [list(hashlib.sha256(value.encode()).digest()) for value in values.values()]
        mine = torch.tensor(digests, dtype=torch.uint8)
        found = [torch.empty_like(mine) for _ in range(self.count)]
        torch.distributed.all_gather(found, mine, group=self._control)
        for row, name in enumerate(values):
            if any(not torch.equal(other[row], mine[row]) for other in found):
                raise UserError(
                    f"the processes differ in {name.replace('_', ' ')}: all nodes need the same command, "
                    "software and data, and runs_dir in a shared folder"
                )

    def close(self) -> None:
        self._accelerator.end_training()

    def _autocast(self) -> AbstractContextManager[object]:
        bf16 = self._config.mixed_precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16) if bf16 else nullcontext()


@contextmanager
def others_lost(processes: Processes) -> Iterator[None]:
    """Turns the error of a collective operation whose other process has ended into `ProcessLost`."""
    try:
        yield
    except RuntimeError as error:
        # gloo's errors have no class.
        if processes.count == 1 or not (
            isinstance(error, torch.distributed.DistError) or "gloo" in str(error)
        ):
            raise
        raise ProcessLost(
            "another process of this run has ended; the same command goes on from the last checkpoint"
        ) from error


def gathered(tree: Any, *, keep: bool = True) -> Any:
    """A tree of dicts and lists with the whole of each sharded tensor; all processes have to call it.

    Without `keep`, this process takes part and gets None in place of them.
    """
    if isinstance(tree, Mapping):
        return {name: gathered(value, keep=keep) for name, value in tree.items()}
    if isinstance(tree, list):
        return [gathered(value, keep=keep) for value in tree]
    if not _is_sharded(tree):
        return tree
    whole = whole_tensor(tree)
    return whole.detach().cpu() if keep else None


def scattered(weights: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole weights, each sharded as that of the same name in another state dict; all have to call it."""
    return {name: _scattered(whole, like[name]) for name, whole in weights.items()}


def scattered_moments(state: Mapping[str, Any], parameters: Iterable[Tensor]) -> dict[str, Any]:
    """An optimiser's state dict with moments sharded as their parameters are; all have to call it."""
    weights = list(parameters)
    moments = {
        number: {
            name: _scattered(whole, weights[number]) if whole.shape == weights[number].shape else whole
            for name, whole in found.items()
        }
        for number, found in state["state"].items()
    }
    return {**state, "state": moments}


def _scattered(whole: Tensor, like: Any) -> Tensor:
    from torch.distributed.tensor import distribute_tensor

    if not _is_sharded(like):
        return whole
    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements)


def whole_tensor(value: Tensor) -> Tensor:
    """A tensor that may be sharded, whole; then all processes have to call it."""
    from torch.distributed.tensor import DTensor

    return value.full_tensor() if isinstance(value, DTensor) else value


def _is_sharded(value: Any) -> bool:
    return hasattr(value, "full_tensor")


def _make_accelerator(device: torch.device) -> "Accelerator":
    try:
        from accelerate import Accelerator
    except ImportError:
        raise UserError("accelerate=on needs accelerate: pip install accelerate") from None
    launched, on_gpus = launched_processes(), device.type == "cuda"
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if on_gpus and here > (gpus := torch.cuda.device_count()):
        raise UserError(f"{here} processes were started here, which has {gpus} GPUs: start one for each")
    if launched > 1 and "LOCAL_RANK" not in os.environ:
        raise UserError(
            f"WORLD_SIZE is {launched}, and LOCAL_RANK is not set: start the processes with "
            "torchrun --nproc-per-node … -m robot_rl train …"
        )
    # Of the gradients of 1x1 convolutions; "not an error", it says.
    warnings.filterwarnings("ignore", "Grad strides do not match")
    accelerator = Accelerator(cpu=device.type == "cpu")
    assert accelerator.num_processes == launched, accelerator.state
    return accelerator
