"""Replay buffer of environment steps on the learner's device; n-step windows are made when sampled."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SOURCES = ("demo", "base", "policy", "human", "imagined", "handover")
"""Who acted in a step; `handover` is the blend from a person back to the policy."""

Fields = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Name -> shape and dtype of the fields of a row besides action, reward and end flags."""

Batch = dict[str, Tensor]
"""A batch of transitions: the fields by name, `next.<field>` after the window, and

    action [B, A]       executed action at the first step
    chunk [B, h, A]     executed actions of the first h steps; after the end of the episode, the actions
                        of the base (its first sample at the last step)
    chunk_mask [B, h]   1 for the executed steps that may be imitated: those of a success, up to the first in
                        which nobody showed what to do
    reward [B]          sum_i gamma^i r_i over the valid steps of the window
    discount [B]        gamma^valid_len, or 0 where the window ended by termination
    steps [B]           sum_i gamma^i over the valid steps: what a reward of 1 per step would give
    demo [B]            1 for a demonstration
    success [B]         1 in an episode that is known to have succeeded
"""

_KEPT_AT_START = ("noise", "chunk_step")
"""Fields that are not needed after the window."""
_TAKEN_OVER = (SOURCES.index("human"), SOURCES.index("handover"))
_NOT_EXECUTED = -1
"""`chunk_step` of a step whose chunk was interrupted by an intervention."""


class SwitchCost(NamedTuple):
    """Cost of each gripper switch between open and closed."""

    dimensions: tuple[int, ...] = ()
    """Action dimensions of the grippers; their sign is the command."""
    cost: float = 0.0
    """Reward subtracted per switch."""


FREE: Final = SwitchCost()


class ReplayBuffer:
    """Ring buffers of steps, one per stream (parallel environment), in time order.

    A row holds an observation, the policy's outputs and the executed action. The last observation of
    an episode is a separate row without an action, so nothing is stored twice and no transition
    crosses a reset. A terminated episode does not need that row. `capacity` counts the rows of all
    streams together. The row indices are kept on the host, so sampling never waits for the device.
    """

    def __init__(
        self,
        capacity: int,
        streams: int,
        action_size: int,
        fields: Fields,
        device: torch.device | str = "cpu",
        switch: SwitchCost = FREE,
        features_of: str = "",
        failure_weight: float = 1.0,
    ) -> None:
        self._switch = switch
        self._failure_weight = failure_weight
        """Sampling weight of the steps of episodes that failed or are open, relative to successful ones."""
        self.features_of = features_of
        """Fingerprint of the base whose features are stored; empty without features."""
        self.rows, self.streams = capacity // streams, streams
        self.device = torch.device(device)
        self.fields = dict(fields)
        every: Fields = {
            **fields,
            "action": ((action_size,), torch.float32),
            "reward": ((), torch.float32),
            "terminated": ((), torch.bool),
            "source": ((), torch.int8),
            "start": ((), torch.bool),
            "last": ((), torch.bool),
            "success": ((), torch.bool),
        }
        total = self.rows * streams
        self.data = {
            name: torch.zeros((total, *shape), dtype=dtype, device=self.device)
            for name, (shape, dtype) in every.items()
        }
        self._start = np.zeros(total, bool)
        """Rows that start a complete step: its reward is known, and its next observation, if needed."""
        self._last = np.zeros(total, bool)
        """Rows without an action."""
        self._decision = np.zeros(total, bool)
        """Rows where a chunk was decided."""
        self._human = np.zeros(total, bool)
        """Rows in which a person acted."""
        self._weight = np.ones(total, np.float32)
        """Relative sampling weight of a row, at most 1."""
        self._weighted = failure_weight != 1
        """Whether weights may differ from 1; else a draw need not look at all of them."""
        self._count = np.zeros(streams, np.int64)
        """Rows ever written to each stream."""
        self._episode_start = np.zeros(streams, np.int64)

    def __len__(self) -> int:
        """Number of rows in the buffer."""
        return int(np.minimum(self._count, self.rows).sum())

    def add(
        self,
        streams: NDArray[np.integer[Any]],
        *,
        action: NDArray[np.float32],
        reward: NDArray[np.float32],
        terminated: NDArray[np.bool_],
        source: int,
        **fields: NDArray[Any],
    ) -> None:
        """Add one step for each of the given streams. Fields that are not in `fields` are ignored."""
        at = self._write(streams, fields, is_last=False)
        index = torch.from_numpy(at).to(self.device)
        self.data["action"][index] = torch.from_numpy(np.asarray(action, np.float32)).to(self.device)
        if self._switch.cost:
            reward = reward - self._switch.cost * self._switches(streams, at)
        self.data["reward"][index] = torch.from_numpy(np.asarray(reward, np.float32)).to(self.device)
        self.data["terminated"][index] = torch.from_numpy(np.asarray(terminated, bool)).to(self.device)
        self.data["source"][index] = source
        self._human[at] = source == SOURCES.index("human")
        if source in _TAKEN_OVER and "chunk_step" in self.fields:
            self._undecide(at, np.asarray(fields["chunk_step"]))
        self._terminate(streams[terminated], at[terminated])

    def end(self, streams: NDArray[np.integer[Any]], **fields: NDArray[Any]) -> None:
        """Add the last observation of an episode, with the policy's outputs there."""
        self._write(streams, fields, is_last=True)

    def close_episode(self, streams: NDArray[np.integer[Any]], *, success: bool) -> None:
        """End the episodes of these streams.

        After interventions, only the person's steps and the policy's steps after the last one count as
        successful.
        """
        for stream in streams:
            count = int(self._count[stream])
            first = max(int(self._episode_start[stream]), count - self.rows)
            rows = np.arange(first, count) % self.rows + stream * self.rows
            self._weight[rows] = 1 if success else self._failure_weight
            index = torch.from_numpy(rows).to(self.device)
            self.data["success"][index] = success
            # The row after the last step has no source.
            taken = np.isin(self.data["source"][index].cpu().numpy(), _TAKEN_OVER) & ~self._last[rows]
            if success and taken.any():
                good = self._human[rows] | (np.arange(len(rows)) > np.flatnonzero(taken)[-1])
                self.data["success"][index] = torch.from_numpy(good).to(self.device)
            self._episode_start[stream] = count

    def episode_rows(
        self, stream: int, names: tuple[str, ...] = (), *, is_open: bool = True
    ) -> dict[str, Tensor]:
        """State, action, end flags and the named fields of a stream's rows.

        Of the open episode, or of all that the stream holds.
        """
        count = int(self._count[stream])
        first = max(int(self._episode_start[stream]) if is_open else 0, count - self.rows)
        rows = torch.from_numpy(np.arange(first, count) % self.rows + stream * self.rows).to(self.device)
        return {name: self.data[name][rows] for name in ("state", "action", "terminated", "last", *names)}

    def never_begin(self, stream: int, steps: NDArray[np.bool_]) -> None:
        """Let no window begin at these of the stream's first steps [T], and nothing imitate them.

        Windows may pass through them.
        """
        rows = stream * self.rows + np.flatnonzero(steps)
        self._weight[rows], self._weighted = 0, True
        self.data["success"][torch.from_numpy(rows).to(self.device)] = False

    def cut(self, stream: int) -> None:
        """End the interrupted episode of a stream: its newest row becomes its last observation."""
        count = int(self._count[stream])
        at = np.array([stream * self.rows + (count - 1) % self.rows])
        if count > self._episode_start[stream] and not (self._start[at] | self._last[at]).any():
            self._last[at], self._human[at] = True, False
            self.data["last"][torch.from_numpy(at).to(self.device)] = True

    def terminate_at_takeover(self, stream: int) -> None:
        """Mark the newest policy step of a stream as terminated because a person takes over."""
        count = int(self._count[stream])
        at = np.array([stream * self.rows + (count - 1) % self.rows])
        index = torch.from_numpy(at).to(self.device)
        if count > self._episode_start[stream] and int(self.data["source"][index]) not in _TAKEN_OVER:
            self.data["terminated"][index] = True
            self._mark(at, True)

    def humans(self, *, chunk_starts_only: bool = False) -> int:
        """Number of human steps at which a window may start."""
        return int(np.count_nonzero(self._human & self._begins(chunk_starts_only)))

    def beginnings(self, *, chunk_starts_only: bool = False) -> int:
        """Number of steps at which a window may start."""
        return int(np.count_nonzero(self._begins(chunk_starts_only) & (self._weight > 0)))

    def sample(
        self,
        batch: int,
        *,
        n_step: int,
        gamma: float,
        rng: np.random.Generator,
        chunk: int = 0,
        chunk_starts_only: bool = False,
        bootstrap_truncation: bool = True,
        humans_only: bool = False,
    ) -> Batch:
        """Sample `batch` n-step transitions.

        A window ends early where its episode or the stream ends; its discount tells its length.

        Args:
            batch: number of windows.
            n_step: length of a window in steps.
            gamma: discount per step.
            rng: random generator that draws the first steps.
            chunk: steps h of the executed chunk to return, at most `n_step`; 0 for none.
            chunk_starts_only: windows start only where a chunk was decided.
            bootstrap_truncation: whether to bootstrap at the end of an episode that hit its time limit.
            humans_only: windows start only at steps in which a person acted.

        Raises:
            ValueError: if the buffer holds no complete step.
        """
        data = self.data
        draw = self._draw_human if humans_only else self._draw
        row = torch.from_numpy(draw(batch, rng, chunk_starts_only)).to(self.device, non_blocking=True)
        rows, inside, terminated = self._windows(row, n_step)
        length = inside.sum(1)
        powers = gamma ** torch.arange(n_step + 1, device=self.device).float()
        reward = (data["reward"][rows[:, :-1]] * inside * powers[:-1]).sum(1)
        discount = torch.where(terminated, 0.0, powers[length])
        last = self._following(rows, length, terminated)
        if not bootstrap_truncation:
            discount = torch.where(data["last"][last], 0.0, discount)
        out: Batch = {"reward": reward, "discount": discount, "action": data["action"][row]}
        out["steps"] = (inside * powers[:-1]).sum(1)
        out["success"] = data["success"][row].float()
        out["demo"] = (data["source"][row] == SOURCES.index("demo")).float()
        for name in self.fields:
            out[name] = data[name][row]
            if name not in _KEPT_AT_START:
                out[f"next.{name}"] = data[name][last]
        if chunk:
            out["chunk"] = self._executed(rows[:, :chunk], length, chunk)
            # An unsuccessful step, as one in which the arm held, ends what may be imitated.
            imitated = inside[:, :chunk] & data["success"][rows[:, :chunk]]
            out["chunk_mask"] = imitated.cumprod(1).float()
        return out

    def held(self, name: str) -> NDArray[Any]:
        """All values of a field in the buffer [T, …]."""
        values = self.data[name].view(self.streams, self.rows, *self.data[name].shape[1:]).cpu().numpy()
        return np.concatenate([values[i, : min(self._count[i], self.rows)] for i in range(self.streams)])

    def state_dict(self) -> dict[str, Any]:
        used = int(min(self._count.max(initial=0), self.rows))
        shaped = {name: v.view(self.streams, self.rows, *v.shape[1:]) for name, v in self.data.items()}
        return {
            "count": self._count.copy(),
            "episode_start": self._episode_start.copy(),
            "weight": self._weight.reshape(self.streams, -1)[:, :used].copy(),
            "features_of": self.features_of,
            **{f"data.{name}": value[:, :used].clone() for name, value in shaped.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`. Raises ValueError if that holds features of another base."""
        found = state.get("features_of", "")
        if found != self.features_of:
            raise ValueError(
                f"the checkpoint holds features of the base {found or '(none)'}, and the base is now "
                f"{self.features_of or '(none)'}: use the base that the run began with, or begin a new run"
            )
        self._count[:] = state["count"]
        self._episode_start[:] = state["episode_start"]
        used = state["weight"].shape[1]
        self._weight.reshape(self.streams, -1)[:, :used] = state["weight"]
        self._weighted |= bool((self._weight != 1).any())
        for name, value in self.data.items():
            value.view(self.streams, self.rows, *value.shape[1:])[:, :used] = state[f"data.{name}"]
        self._start[:] = self.data["start"].cpu().numpy()
        self._last[:] = self.data["last"].cpu().numpy()
        self._human[:] = (self.data["source"].cpu().numpy() == SOURCES.index("human")) & ~self._last
        if "chunk_step" in self.fields:
            self._decision[:] = self.data["chunk_step"].cpu().numpy() == 0

    def _write(
        self, streams: NDArray[np.integer[Any]], fields: Mapping[str, NDArray[Any]], *, is_last: bool
    ) -> NDArray[np.int64]:
        """Write a new row for each stream, which completes the step before it."""
        count = self._count[streams]
        at = streams * self.rows + count % self.rows
        before = streams * self.rows + (count - 1) % self.rows
        self._mark(at, False)
        self._mark(before[(count > 0) & ~self._last[before]], True)
        self._last[at] = is_last
        self._human[at] = False
        self._weight[at] = self._failure_weight
        self._decision[at] = fields["chunk_step"] == 0 if "chunk_step" in self.fields else False
        index = torch.from_numpy(at).to(self.device)
        for name in self.fields:
            self.data[name][index] = torch.from_numpy(fields[name]).to(self.device, self.fields[name][1])
        self.data["terminated"][index] = False
        self.data["last"][index] = is_last
        self.data["success"][index] = False
        self._count[streams] += 1
        return at

    def _switches(self, streams: NDArray[np.integer[Any]], at: NDArray[np.int64]) -> NDArray[np.float32]:
        """Number of grippers that each row switches; 0 at the first step of an episode."""
        first = at - at % self.rows
        before = first + (at - first - 1) % self.rows
        commands = [
            self.data["action"][torch.from_numpy(rows).to(self.device)][:, list(self._switch.dimensions)] > 0
            for rows in (at, before)
        ]
        changed = (commands[0] != commands[1]).sum(1).cpu().numpy()
        return np.where(self._count[streams] - 1 > self._episode_start[streams], changed, 0).astype(
            np.float32
        )

    def _undecide(self, at: NDArray[np.int64], chunk_step: NDArray[np.integer[Any]]) -> None:
        """Mark the chunks of steps that were taken over as not executed."""
        stream_start = at - at % self.rows
        decided = stream_start + (at - stream_start - chunk_step) % self.rows
        rows = np.concatenate([at, decided])
        self._decision[rows] = False
        self.data["chunk_step"][torch.from_numpy(rows).to(self.device)] = _NOT_EXECUTED

    def _begins(self, chunk_starts_only: bool) -> NDArray[np.bool_]:
        return self._start & self._decision if chunk_starts_only else self._start

    def _terminate(self, streams: NDArray[np.integer[Any]], rows: NDArray[np.int64]) -> None:
        """Complete the steps in these rows, with which the episodes of these streams terminate."""
        self._mark(rows, True)

    def _mark(self, rows: NDArray[np.int64], start: bool) -> None:
        if len(rows):
            self._start[rows] = start
            self.data["start"][torch.from_numpy(rows).to(self.device)] = start

    def _windows(self, row: Tensor, n_step: int) -> tuple[Tensor, Tensor, Tensor]:
        """The windows that begin at `row` [B].

        Returns:
            Rows [B, n + 1]; 1 for each valid step, else 0 [B, n]; whether a termination ended the window [B].
        """
        stream_start = row - row % self.rows
        ahead = torch.arange(n_step + 1, device=self.device)
        rows = stream_start[:, None] + (row[:, None] - stream_start[:, None] + ahead) % self.rows
        whole = self.data["start"][rows[:, :-1]]
        ends = self.data["terminated"][rows[:, :-1]]
        # Step i is in the window if all steps before it were complete and did not terminate.
        before = (whole & ~ends)[:, :-1].long().cumprod(1)
        inside = torch.cat([torch.ones_like(row)[:, None], before], 1) * whole
        return rows, inside, (ends & inside.bool()).any(1)

    def _following(self, rows: Tensor, length: Tensor, terminated: Tensor) -> Tensor:
        """The rows [B] after windows, of which `next.<field>` is."""
        # The row after a termination may belong to another episode, so it is not used.
        after = length - terminated.long()
        return rows.gather(1, after[:, None]).squeeze(1)

    def _executed(self, rows: Tensor, length: Tensor, chunk: int) -> Tensor:
        """Actions [B, h, A] of the first h steps of each window, continued by the base's if it is shorter."""
        actions = self.data["action"][rows]
        if "base_samples" not in self.data:
            return actions
        final = rows.gather(1, (length[:, None] - 1).clamp(max=chunk - 1)).squeeze(1)
        planned = self.data["base_samples"][final, 0]
        step = torch.arange(chunk, device=self.device)[None]
        past = (step - (length[:, None] - 1)).clamp(0, planned.shape[1] - 1)
        instead = planned.gather(1, past[:, :, None].expand(-1, -1, planned.shape[2]))
        return torch.where((step < length[:, None])[:, :, None], actions, instead)

    def _draw_human(self, batch: int, rng: np.random.Generator, chunk_starts_only: bool) -> NDArray[np.int64]:
        """Draw rows that start a human step. They are rare, so rejection would be slow."""
        rows = np.flatnonzero(self._human & self._begins(chunk_starts_only))
        if not len(rows):
            raise ValueError("the replay holds no step that a person drove")
        return rows[rng.integers(len(rows), size=batch)]

    def _draw(self, batch: int, rng: np.random.Generator, chunk_starts_only: bool) -> NDArray[np.int64]:
        """Draw rows that start a step, in proportion to their weight, by rejection sampling."""
        held = np.minimum(self._count, self.rows)
        total = int(held.sum())
        starts = np.cumsum(held)
        allowed = self._begins(chunk_starts_only)
        largest, weighted = 1.0, self._weighted
        if weighted:
            # Relative to the largest, so that few draws are rejected while nothing has succeeded yet.
            largest = float(self._weight[allowed].max(initial=0.0)) or 1.0
            weighted = bool((self._weight < largest).any())
        found: list[NDArray[np.int64]] = []
        missing, tries = batch, 0
        while missing > 0:
            flat = rng.integers(total, size=batch + batch // 8) if total else np.zeros(0, np.int64)
            stream = np.searchsorted(starts, flat, side="right")
            row = flat - (starts[stream] - held[stream]) + stream * self.rows
            good = allowed[row]
            if weighted:
                good &= rng.random(len(row)) * largest < self._weight[row]
            found.append(row[good])
            missing -= int(good.sum())
            tries += 1
            if tries > 1000:
                raise ValueError("the replay holds no whole step to sample from")
        return np.concatenate(found)[:batch]
