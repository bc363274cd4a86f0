"""Replay of primitive steps, from which transitions over any window are made by index."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SOURCES = ("demo", "base", "policy", "human", "imagined")


@dataclass(frozen=True)
class Transitions:
    """A batch of n-step transitions; shapes [B, …]."""

    state: NDArray[np.float32]
    base: NDArray[np.float32]
    """Base action at the first step."""
    action: NDArray[np.float32]
    """Executed action at the first step."""
    reward: NDArray[np.float32]
    """sum_i gamma^i r_i over the valid steps of the window."""
    discount: NDArray[np.float32]
    """gamma^valid_len, or 0 where the window ended by termination."""
    next_state: NDArray[np.float32]
    """State after the window; where the window ended by termination, any (its discount is 0)."""
    next_base: NDArray[np.float32]
    source: NDArray[np.int8]


class Replay:
    """Ring buffers, one per stream (environment slot), of rows in the order they were made.

    A row holds an observation, the base action there and what was done. The last observation of
    an episode is a row of its own without an action (`is_last`), so nothing is stored twice and
    no transition crosses a reset. An episode that terminated may do without that row: nothing
    looks at it. `capacity` counts rows of all streams together.
    """

    _FIELDS = ("state", "base", "action", "reward", "terminated", "is_last", "source")

    def __init__(self, capacity: int, streams: int, state_size: int, action_size: int) -> None:
        rows = capacity // streams
        self.rows, self.streams = rows, streams
        self.state = np.zeros((streams, rows, state_size), np.float32)
        self.base = np.zeros((streams, rows, action_size), np.float32)
        self.action = np.zeros((streams, rows, action_size), np.float32)
        self.reward = np.zeros((streams, rows), np.float32)
        self.terminated = np.zeros((streams, rows), bool)
        self.is_last = np.ones((streams, rows), bool)
        self.source = np.zeros((streams, rows), np.int8)
        self._count = np.zeros(streams, np.int64)
        """Rows ever written to each stream."""

    def __len__(self) -> int:
        """Rows that are held now."""
        return int(np.minimum(self._count, self.rows).sum())

    def add(
        self,
        streams: NDArray[np.integer[Any]],
        *,
        state: NDArray[np.float32],
        base: NDArray[np.float32],
        action: NDArray[np.float32],
        reward: NDArray[np.float32],
        terminated: NDArray[np.bool_],
        source: int,
    ) -> None:
        """Add one step for each of the given streams."""
        at = self._next_rows(streams)
        self.state[streams, at] = state
        self.base[streams, at] = base
        self.action[streams, at] = action
        self.reward[streams, at] = reward
        self.terminated[streams, at] = terminated
        self.is_last[streams, at] = False
        self.source[streams, at] = source

    def end(
        self, streams: NDArray[np.integer[Any]], *, state: NDArray[np.float32], base: NDArray[np.float32]
    ) -> None:
        """Add the last observation of an episode, and the base action there."""
        at = self._next_rows(streams)
        self.state[streams, at] = state
        self.base[streams, at] = base
        self.action[streams, at] = 0
        self.reward[streams, at] = 0
        self.terminated[streams, at] = False
        self.is_last[streams, at] = True

    def sample(self, batch: int, *, n_step: int, gamma: float, rng: np.random.Generator) -> Transitions:
        """Draw `batch` windows uniformly over the steps whose next observation is known or not needed.

        A window is cut where its episode or the stream ends; its discount says how long it is.

        Raises:
            ValueError: no whole step is held.
        """
        stream, row = self._draw(batch, rng)
        reward = np.zeros(batch, np.float32)
        discount = np.ones(batch, np.float32)
        last = row.copy()
        running = np.ones(batch, bool)
        for _ in range(n_step):
            reward += np.where(running, discount * self.reward[stream, last], 0).astype(np.float32)
            discount = np.where(running, discount * gamma, discount).astype(np.float32)
            terminated = running & self.terminated[stream, last]
            discount[terminated] = 0
            running &= ~terminated
            last = np.where(running, (last + 1) % self.rows, last)
            running &= self._is_start(stream, last)
        return Transitions(
            state=self.state[stream, row],
            base=self.base[stream, row],
            action=self.action[stream, row],
            reward=reward,
            discount=discount,
            next_state=self.state[stream, last],
            next_base=self.base[stream, last],
            source=self.source[stream, row],
        )

    def held_states(self) -> NDArray[np.float32]:
        """All states that are held [T, S]."""
        held = np.minimum(self._count, self.rows)
        return np.concatenate([self.state[i, : held[i]] for i in range(self.streams)])

    def state_dict(self) -> dict[str, Any]:
        used = int(min(self._count.max(initial=0), self.rows))
        return {
            "count": self._count.copy(),
            **{name: getattr(self, name)[:, :used].copy() for name in self._FIELDS},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._count[:] = state["count"]
        for name in self._FIELDS:
            value = state[name]
            getattr(self, name)[:, : value.shape[1]] = value

    def _next_rows(self, streams: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        at = self._count[streams] % self.rows
        self._count[streams] += 1
        return at

    def _is_start(self, stream: NDArray[np.int64], row: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether a step begins there whose reward is known and whose next observation is, if needed."""
        newest = row == (self._count[stream] - 1) % self.rows
        return ~self.is_last[stream, row] & (~newest | self.terminated[stream, row])

    def _draw(self, batch: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Uniform over rows that begin a step, by rejection."""
        held = np.minimum(self._count, self.rows)
        total = int(held.sum())
        starts = np.cumsum(held)
        streams: list[NDArray[np.int64]] = []
        rows: list[NDArray[np.int64]] = []
        found, tries = 0, 0
        while found < batch:
            flat = rng.integers(total, size=batch + batch // 8) if total else np.zeros(0, np.int64)
            stream = np.searchsorted(starts, flat, side="right")
            row = flat - (starts[stream] - held[stream])
            good = self._is_start(stream, row)
            streams.append(stream[good])
            rows.append(row[good])
            found += int(good.sum())
            tries += 1
            if tries > 1000:
                raise ValueError("the replay holds no whole step to sample from")
        return np.concatenate(streams)[:batch], np.concatenate(rows)[:batch]
