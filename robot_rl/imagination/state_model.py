"""A world model of states: an ensemble of networks, each of which predicts the result of a chunk.

    s_{t+1..t+h} = s_t + f_i(s_t, s_t - s_{t-1}, a_{t-h..t-1}, a_{t..t+h-1}, mask)     member i
    L_i = mean over valid steps of |s - s_i|^2, over two consecutive chunks
    P_i(step j succeeds | none before did) = sigmoid(g_i(s_j))

The networks predict no variance: a likelihood (PETS, arXiv 1805.12114) gives the least weight to contacts,
which are hard to predict (arXiv 2203.09168) and decide about success. Targets are normalised next states, not
differences (arXiv 2510.01457). A task's reward is 1 at success, so the classifier of success is the model of
the reward; it has a separate loss and separate networks, and learns from predicted states too, since it
judges these.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robot_rl.imagination.config import StateModelConfig
from robot_rl.imagination.episodes import Context, Episode, Steps, Windows
from robot_rl.imagination.world_model import ChunkStart, Prediction
from robot_rl.policies.nets.critic import EnsembleLinear

_CLASSIFIER_HIDDEN = 64
_CLASSIFIER_LR = 5
"""Its learning rate, relative to that of the dynamics: it is small, and successes are rare."""
_NEWEST, _FAILED = 0.5, 0.3
"""Part of a batch from new episodes, and least part from failed ones."""
_RIDGE, _MIN_LINEAR = 1e-6, 5
"""Ridge of the least squares, relative to the data; windows that it needs for each input."""
MIN_SCALE, MIN_STEP = 1e-2, 1e-3
"""Least standard deviation of a dimension and of its change in a step, in m or rad: an object that did not
move in the first episodes may move later."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a model."""

    state: int
    action: int
    chunk: int
    """Steps h of an executed chunk."""
    quaternions: tuple[int, ...] = ()
    """First dimension of each quaternion in the state."""


class EnsembleMLP(nn.Module):
    """E networks, for inputs [B, in] that they share or [E, B, in]: outputs [E, B, out].

    There is a ReLU after each layer but the last one.
    """

    def __init__(self, members: int, sizes: Sequence[int]) -> None:
        super().__init__()
        self.members = members
        self.layers = nn.ModuleList(EnsembleLinear(members, *pair) for pair in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        x = x if x.ndim == 3 else x.expand(self.members, *x.shape)
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, EnsembleLinear)
            x = torch.baddbmm(layer.bias, x, layer.weight)
            if i < len(self.layers) - 1:
                x = x.relu_()
        return x


class StateModel(nn.Module):
    """The ensemble, its classifiers of success, and their optimiser.

    Networks see normalised states, of size Z. Here Z = S; a subclass may encode states otherwise, and give
    the networks more inputs.
    """

    resumable = True
    center: Tensor
    scale: Tensor
    step_scale: Tensor
    """Standard deviation of the change in one step, of normalised states [Z]."""

    def __init__(self, config: StateModelConfig, shape: Shape, seed: int) -> None:
        super().__init__()
        self.config, self.shape = config, shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            size = self._build(shape.state)
            self.classifier = EnsembleMLP(config.members, (size, _CLASSIFIER_HIDDEN, 1))
        self.register_buffer("step_scale", torch.ones(size))
        self.register_buffer("center", torch.zeros(shape.state))
        self.register_buffer("scale", torch.ones(shape.state))
        self.fitted = False
        self._generator = torch.Generator().manual_seed(seed)
        dynamics = [p for name, p in self.named_parameters() if not name.startswith("classifier.")]
        classifier = list(self.classifier.parameters())
        self._optimizer = torch.optim.AdamW(
            [{"params": dynamics}, {"params": classifier}], config.lr, weight_decay=1e-4, fused=True
        )

    def _build(self, size: int, more: int = 0) -> int:
        """Make the networks that predict states of a size Z, with more inputs; returns the size Z of all."""
        count, h = self.config.members, self.shape.chunk
        inputs = 2 * size + 2 * h * self.shape.action
        # Free motion is nearly linear in the actions; the networks learn the rest.
        self.linear = EnsembleLinear(count, inputs, h * size)
        self.change = EnsembleMLP(count, (inputs + h + more, *self.config.hidden, h * size))
        return size

    @property
    def members(self) -> int:
        return self.config.members

    # ---- prediction ----------------------------------------------------------------------------------

    @torch.no_grad()
    def step(
        self, start: ChunkStart, chunk: Tensor, member: Tensor, length: Tensor | None = None
    ) -> Prediction:
        frames, context = self._encode(start.frames), start.context
        seen = context and context.encoded(self._encode)
        steps = torch.arange(chunk.shape[1])
        mask = torch.ones(chunk.shape[:2])
        if length is not None:
            mask = (steps < length[:, None]).float()
        means = self._predict(frames, start.past, chunk, mask, seen)
        logits = self._logits(means)
        # An episode ends with its success, so a step's probability holds if none before it succeeded.
        success = 1 - (1 - logits.sigmoid() * mask).cumprod(2)
        ends = means[:, :, -1] if length is None else means[:, torch.arange(len(chunk)), length - 1]
        chosen = means[member, torch.arange(len(chunk))]
        return Prediction(
            self._renormalize(self._decode(chosen, start.frames[:, -1:])),
            success.amin(0),
            success.amax(0),
            self._spread(ends),
        )

    def _predict(
        self, frames: Tensor, past: Tensor, actions: Tensor, mask: Tensor, context: Context | None
    ) -> Tensor:
        """Normalised states [E, B, h, Z] after each step; frames [B, 2, Z] and context are normalised too."""
        return frames[..., -1:, :] + self._change(frames, past, actions, mask)

    def _change(self, frames: Tensor, past: Tensor, actions: Tensor, mask: Tensor, *more: Tensor) -> Tensor:
        """Change [E, B, h, Z] of normalised states until after each step, with more inputs [..., in]."""
        inputs = self._inputs(frames, past, actions * mask[..., None])
        linear = torch.matmul(inputs, self.linear.weight) + self.linear.bias
        change = linear + self.change(torch.cat([inputs, mask, *more], -1))
        return self.step_scale[: frames.shape[-1]] * change.unflatten(-1, (self.shape.chunk, -1))

    def _inputs(self, frames: Tensor, past: Tensor, actions: Tensor) -> Tensor:
        """Inputs [..., in] of the linear part: state, velocity, past and planned actions."""
        velocity = (frames[..., 1, :] - frames[..., 0, :]) / self.step_scale[: frames.shape[-1]]
        parts = (frames[..., 1, :], velocity.clamp(-10, 10), past.flatten(-2), actions.flatten(-2))
        return torch.cat(parts, -1)

    @torch.no_grad()
    def _fit_linear(self, steps: Steps) -> None:
        """Set the linear part by least squares, and the networks' corrections of it to 0."""
        windows = steps.windows(steps.starts, self.shape.chunk)
        whole = windows.seen.all(1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        for parameter in list(self.change.parameters())[-2:]:
            nn.init.zeros_(parameter)
        if int(whole.sum()) < _MIN_LINEAR * self.linear.weight.shape[1]:
            return
        size = self.linear.weight.shape[2] // self.shape.chunk
        frames, targets = windows.frames[whole][..., :size], windows.states[whole][..., :size]
        inputs = self._inputs(frames, windows.past[whole], windows.actions[whole])
        inputs = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], 1)
        change = ((targets - frames[:, 1:]) / self.step_scale[:size]).flatten(1)
        gram = (inputs.T @ inputs).double()
        ridge = _RIDGE * len(inputs) * torch.eye(len(gram), dtype=torch.double)
        solution = torch.linalg.solve(gram + ridge, (inputs.T @ change).double()).float()
        self.linear.weight.copy_(solution[:-1].expand_as(self.linear.weight))
        self.linear.bias.copy_(solution[-1:].expand_as(self.linear.bias))

    def _logits(self, states: Tensor) -> Tensor:
        """Logits [E, B, h] that the steps to normalised states [E, B, h, Z] succeed.

        They depend on the state alone. An episode ends with its first success, so that the data have no step
        from one successful state to another, but a model that predicts a success too late has such steps.
        """
        return self.classifier(states.flatten(1, 2)).view(states.shape[:3])

    # ---- units ---------------------------------------------------------------------------------------

    def _fit_units(self, steps: Steps) -> None:
        """Set the units of states from those of the first fit."""
        self.center.copy_(steps.state.mean(0))
        self.scale.copy_(steps.state.std(0).clamp(min=MIN_SCALE))
        change = (steps.state[steps.starts + 1] - steps.state[steps.starts]) / self.scale
        self.step_scale.copy_(torch.maximum(change.std(0), MIN_STEP / self.scale))

    def _encode(self, states: Tensor) -> Tensor:
        """Normalised states [..., Z] of states [..., S]."""
        return (states - self.center) / self.scale

    def _decode(self, encoded: Tensor, now: Tensor) -> Tensor:
        """States [B, h, S] of normalised ones [B, h, Z], which follow the states `now` [B, 1, S]."""
        del now
        return encoded * self.scale + self.center

    def _spread(self, encoded: Tensor) -> Tensor:
        """Standard deviation [B, S] of the members' states, normalised [E, B, Z], in units of `scale`."""
        return encoded.std(0, unbiased=False)

    def _renormalize(self, states: Tensor) -> Tensor:
        """Scale quaternions back to length 1."""
        for first in self.shape.quaternions:
            part = states[..., first : first + 4]
            states[..., first : first + 4] = part / part.norm(dim=-1, keepdim=True).clamp(min=1e-6)
        return states

    # ---- learning ------------------------------------------------------------------------------------

    def fit(self, episodes: Sequence[Episode], newest: int, updates: int) -> dict[str, float]:
        steps = Steps(episodes, self.config.context_chunks)
        if first := not self.fitted:
            # Kept afterwards: networks that learned in one unit would have to learn again in another.
            self._fit_units(steps)
            self.fitted = True
        steps.state = self._encode(steps.state)
        if first:
            self._fit_linear(steps)
        weights = sampling_weights(episodes, newest)[steps.episode[steps.starts]]
        losses: dict[str, float] = {}
        for i in range(updates):
            for group, factor in zip(self._optimizer.param_groups, (1, _CLASSIFIER_LR), strict=True):
                group["lr"] = factor * self.config.lr * (1 - i / updates)
            losses = self._update(steps, weights)
        return losses

    def _update(self, steps: Steps, weights: Tensor) -> dict[str, float]:
        """One gradient step, in which each network sees other windows of normalised states."""
        shape = (self.members, self.config.batch_size)
        drawn = torch.multinomial(weights, shape[0] * shape[1], replacement=True, generator=self._generator)
        row = steps.starts[drawn].view(shape)
        # Chunks may be cut short when they are executed: the first one has a random length.
        length = torch.randint(1, self.shape.chunk + 1, shape, generator=self._generator)
        first = steps.windows(row, self.shape.chunk)
        made = first.valid & (torch.arange(self.shape.chunk) < length[..., None])
        then = steps.windows(torch.minimum(row + length, steps.last[row]), self.shape.chunk)
        error, predicted = self._error(first, first.frames, made)
        whole = torch.cat([first.frames, predicted], 2)
        at = length[..., None, None].expand(-1, -1, 1, whole.shape[-1])
        frames = torch.cat([whole.gather(2, at), whole.gather(2, at + 1)], 2)
        second, after = self._error(then, frames, then.valid)
        classes = self._classifier_loss(first, predicted, made) + self._classifier_loss(
            then, after, then.valid
        )
        loss = error + second + classes
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters(), 10.0)
        self._optimizer.step()
        count = self.members
        return {"model_loss": float(error.detach()) / count, "success_loss": float(classes.detach()) / count}

    def _error(self, windows: Windows, frames: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Mean squared error summed over the networks, and the predicted states [E, B, h, Z]."""
        states = self._predict(frames, windows.past, windows.actions, valid.float(), windows.context)
        error = (states - windows.states).square().mean(-1)
        return _mean(error, valid & windows.seen).sum(), states

    def _classifier_loss(self, windows: Windows, predicted: Tensor, valid: Tensor) -> Tensor:
        """Cross entropy of success on recorded and on predicted states, summed over the networks."""
        labels = windows.success.float()
        total = torch.zeros(())
        for states, judged in ((windows.states, valid & windows.seen), (predicted.detach(), valid)):
            loss = F.binary_cross_entropy_with_logits(self._logits(states), labels, reduction="none")
            total = total + _mean(loss, judged).sum()
        return total

    # ---- saving --------------------------------------------------------------------------------------

    def checkpoint(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {
            "networks": self.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "fitted": self.fitted,
            "generator": self._generator.get_state(),
            "shape": {**asdict(self.shape), "quaternions": list(self.shape.quaternions)},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `checkpoint` returned.

        Raises:
            ValueError: if it has other networks, as checkpoints of earlier versions do.
        """
        try:
            self.load_state_dict(state["networks"])
        except RuntimeError as error:
            raise ValueError(
                "the saved world model has other networks than this version's: begin a new run"
            ) from error
        self._optimizer.load_state_dict(state["optimizer"])
        self.fitted = state["fitted"]
        self._generator.set_state(state["generator"])


def _mean(loss: Tensor, mask: Tensor) -> Tensor:
    """Mean [E] of what each network loses [E, B, h], over the steps of a mask."""
    return (loss * mask).sum((1, 2)) / mask.sum((1, 2)).clamp(min=1)


def sampling_weights(episodes: Sequence[Episode], newest: int) -> Tensor:
    """Weight of a step of each episode [n]: half of a batch is new, at least 30 % is of failed episodes."""
    lengths = torch.tensor([float(len(episode)) for episode in episodes])
    new = torch.arange(len(episodes)) >= len(episodes) - newest
    failed = torch.tensor([episode.failed for episode in episodes])
    weights = 1 / lengths.sum() * torch.ones(len(episodes))
    if new.any():
        weights = (1 - _NEWEST) * weights + _NEWEST * new / lengths[new].sum()
    part = float((weights * lengths)[failed].sum())
    if 0 < part < _FAILED:
        weights = torch.where(failed, weights * _FAILED / part, weights * (1 - _FAILED) / (1 - part))
    return weights
