"""Episodes that a world model learns from, and windows of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robot_rl.policies.bases.base_policy import Chunk


@dataclass(frozen=True)
class Episode:
    """What happened in one episode: T steps between T + 1 states."""

    states: Tensor
    """[T + 1, S]. The last one repeats the one before if `end_unseen`."""
    actions: Tensor
    """Executed actions [T, A]."""
    success: bool
    """Whether the last step succeeded, which ended the episode."""
    demo: bool = False
    base_samples: Chunk | None = None
    """Samples of the base at each state, actions [T + 1, N, h, A]; None where the base is queried."""
    end_unseen: bool = False
    """Whether the state after the last step is unknown; that it succeeded is known."""

    @property
    def failed(self) -> bool:
        return not (self.success or self.demo)

    def __len__(self) -> int:
        return len(self.actions)


def episode_from_rows(rows: Mapping[str, Tensor], *, success: bool, demo: bool = False) -> Episode:
    """An episode from the rows of a replay, with samples of the base if the rows have them.

    A dataset has no observation after the last step of a terminated episode. If it succeeded, the state
    after it is unknown; otherwise the episode ends one step earlier here.
    """
    states, actions = rows["state"].cpu(), rows["action"].cpu()
    complete = bool(rows["last"][-1])
    samples = None
    if "base_samples" in rows:
        noise = rows.get("base_sample_noise")
        samples = Chunk(rows["base_samples"].cpu(), None if noise is None else noise.cpu())
    if success and not complete and len(states) > 1:
        again = torch.tensor([*range(len(states)), len(states) - 1])
        return Episode(states[again], actions, success, demo, samples and samples[again], end_unseen=True)
    return Episode(states, actions[:-1], success and complete, demo, samples)


def pack_episodes(episodes: Sequence[Episode]) -> dict[str, Any]:
    """A tree of tensors, lists and numbers from which `unpack_episodes` makes the same episodes."""
    samples = [each.base_samples for each in episodes if each.base_samples]
    noise = [each.noise for each in samples if each.noise is not None]
    return {
        "states": torch.cat([each.states for each in episodes]) if episodes else torch.zeros(0),
        "actions": torch.cat([each.actions for each in episodes]) if episodes else torch.zeros(0),
        "lengths": [len(each) for each in episodes],
        "successes": [each.success for each in episodes],
        "demos": [each.demo for each in episodes],
        "ends_unseen": [each.end_unseen for each in episodes],
        "base_samples": torch.cat([each.actions for each in samples]) if samples else None,
        "base_sample_noise": torch.cat(noise) if noise else None,
    }


def unpack_episodes(packed: Mapping[str, Any]) -> list[Episode]:
    """The episodes in what `pack_episodes` returned."""
    lengths = packed["lengths"]
    if not lengths:
        return []
    rows = [length + 1 for length in lengths]
    samples: list[Chunk | None] = [None] * len(rows)
    if packed["base_samples"] is not None:
        noise = packed["base_sample_noise"]
        noises = [None] * len(rows) if noise is None else noise.split(rows)
        samples = [Chunk(*part) for part in zip(packed["base_samples"].split(rows), noises, strict=True)]
    states, actions = packed["states"].split(rows), packed["actions"].split(lengths)
    told = packed["successes"], packed["demos"], samples, packed["ends_unseen"]
    parts = zip(states, actions, *told, strict=True)
    return [Episode(*part) for part in parts]


@dataclass(frozen=True)
class Context:
    """An episode up to a step: its first state, and the M chunks before, each of h steps.

    Before the episode's start its first state is repeated, and actions are 0.
    """

    first: Tensor
    """The episode's first state [L…, S]."""
    frames: Tensor
    """The states in which these chunks began, oldest first [L…, M, S]."""
    actions: Tensor
    """The actions that followed them [L…, M, h, A]."""

    def after(self, frame: Tensor, chunk: Tensor) -> "Context":
        """The context of the next chunk, after actions [B, h, A] from the states [B, S]."""
        frames = torch.cat([self.frames[:, 1:], frame[:, None]], 1)
        return Context(self.first, frames, torch.cat([self.actions[:, 1:], chunk[:, None]], 1))

    def encoded(self, encode: Callable[[Tensor], Tensor]) -> "Context":
        """The context with other vectors for its states."""
        return Context(encode(self.first), encode(self.frames), self.actions)

    def __getitem__(self, rows: Tensor) -> "Context":
        return Context(self.first[rows], self.frames[rows], self.actions[rows])


@dataclass(frozen=True)
class Windows:
    """Two consecutive frames, the actions before and after them, and the states that followed.

    L leading dimensions, h steps of a chunk, `chunks` of them.
    """

    frames: Tensor
    """States before and at the window's first step [L…, 2, S]; an episode's first state is repeated."""
    past: Tensor
    """The h actions before the window [L…, h, A], 0 before the episode."""
    actions: Tensor
    """[L…, chunks h, A], 0 after the episode's end."""
    states: Tensor
    """States after each action [L…, chunks h, S], the last one repeated after the episode's end."""
    valid: Tensor
    """Whether the step was made [L…, chunks h]."""
    seen: Tensor
    """Whether it was made and the state after it is known [L…, chunks h]."""
    success: Tensor
    """Whether the step succeeded [L…, chunks h]."""
    context: Context | None
    """What happened before; None without a history."""


class Steps:
    """The steps of several episodes, one after the other."""

    def __init__(self, episodes: Sequence[Episode], history: int = 0) -> None:
        """Build the steps of episodes.

        Args:
            episodes: one or more.
            history: chunks M in the context of a window; 0 for windows without one.

        Raises:
            ValueError: if there is no episode.
        """
        self.history = history
        if not episodes:
            raise ValueError("a world model needs at least one episode")
        lengths = torch.tensor([len(episode) for episode in episodes])
        rows = lengths + 1
        first = rows.cumsum(0) - rows
        self.episode = torch.repeat_interleave(torch.arange(len(rows)), rows)
        """Episode of each row [N]; an episode of T steps has T + 1 rows."""
        self.first, self.last = first[self.episode], (first + lengths)[self.episode]
        self.state = torch.cat([episode.states for episode in episodes])
        self.action = torch.cat(
            [torch.cat([episode.actions, torch.zeros_like(episode.actions[:1])]) for episode in episodes]
        )
        success = torch.tensor([episode.success for episode in episodes])
        self.success = success[self.episode] & (torch.arange(len(self.state)) == self.last)
        """Whether the row is the state that a successful step led to [N]."""
        unseen = torch.tensor([episode.end_unseen for episode in episodes])
        self._unseen = unseen[self.episode] & (torch.arange(len(self.state)) == self.last)
        self.starts = torch.nonzero(torch.arange(len(self.state)) < self.last).squeeze(1)
        """Rows at which a step begins."""

    def chunk_starts(self, chunk: int) -> Tensor:
        """Rows at which each episode's chunks of `chunk` steps begin."""
        return self.starts[(self.starts - self.first[self.starts]) % chunk == 0]

    def windows(self, row: Tensor, chunk: int, chunks: int = 1) -> Windows:
        """Windows that begin at rows [L…], with `chunks` chunks of `chunk` steps."""
        first, last = self.first[row][..., None], self.last[row][..., None]
        before = row[..., None] + torch.arange(-chunk, 0)
        ahead = row[..., None] + torch.arange(chunks * chunk)
        inside = ahead < last
        after = torch.minimum(ahead + 1, last)
        past = self.action[before.clamp(min=0)] * (before >= first)[..., None]
        actions = self.action[torch.minimum(ahead, last)] * inside[..., None]
        previous = torch.maximum(row - 1, self.first[row])
        frames = torch.stack([self.state[previous], self.state[row]], -2)
        succeeded, seen = self.success[after] & inside, inside & ~self._unseen[after]
        context = self._context(row, chunk)
        return Windows(frames, past, actions, self.state[after], inside, seen, succeeded, context)

    def _context(self, row: Tensor, chunk: int) -> Context | None:
        """What happened before rows [L…]."""
        if not self.history:
            return None
        first = self.first[row][..., None]
        made = row[..., None] + torch.arange(-self.history * chunk, 0)
        actions = self.action[made.clamp(min=0)] * (made >= first)[..., None]
        begun = torch.maximum(made[..., ::chunk], first)
        return Context(self.state[first[..., 0]], self.state[begun], actions.unflatten(-2, (-1, chunk)))
