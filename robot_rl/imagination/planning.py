"""Planning: an exploring policy's candidate chunks are ranked by what a world model predicts of them.

    score = R + gamma^len V(s') + c   reward of the predicted chunk, and value of the state in which it ends
    score = Q(s, chunk)               where the model is uncertain of it, and while the gate does not pass

V has another offset than Q, since critics are combined in another way in targets; c makes the mean score of
the chunks that the model knows that of their Q, so that both kinds can be compared.

A saved policy has no model to plan with.
"""

import torch
from torch import Tensor

from robot_rl.data.replay_buffer import ReplayBuffer
from robot_rl.imagination.branches import judge
from robot_rl.imagination.episodes import Episode, Steps
from robot_rl.imagination.imagination import Imagination
from robot_rl.imagination.world_model import ChunkStart, chunk_start
from robot_rl.policies.bases.base_policy import ObservationHistory
from robot_rl.policies.chunk_runner import ChunkRunner, latest_frame


class Planner:
    """Scores candidate chunks; a `RankCandidates`."""

    def __init__(self, imagination: Imagination, replay: ReplayBuffer, runner: ChunkRunner) -> None:
        """Build the planner.

        Args:
            imagination: with the model and the gate.
            replay: has the open episode of each environment in the stream of its index.
            runner: of the policy.
        """
        self.imagination, self.replay, self.runner = imagination, replay, runner

    @torch.no_grad()
    def __call__(self, obs: ObservationHistory, chunks: Tensor, values: Tensor) -> Tensor:
        imagination = self.imagination
        limits, generator = imagination.limits, imagination.generator
        if limits is None or not (imagination.gate.passes and imagination.has_values):
            return values
        count, candidates = values.shape
        each = torch.arange(count).repeat_interleave(candidates)
        now, chunk = self._chunk_start(obs, chunks.shape[2])[each], chunks.flatten(0, 1)
        # One member for all candidates of a state, so that they are compared by the same dynamics.
        member = torch.randint(imagination.model.members, (count,), generator=generator)[each]
        prediction = imagination.model.step(now, chunk, member)
        outcome = judge(prediction, limits.success)
        reward, discount = imagination.task_reward.of_chunk(chunk, now.past, outcome.length, outcome.success)
        after = now.after(chunk, prediction.states)
        score = reward + discount * imagination.values(after.frames, generator)
        known = limits.uncertainty_of(prediction.disagreement) <= limits.uncertainty[0]
        known &= ~outcome.doubtful
        known, score = known.view_as(values), score.view_as(values)
        offset = torch.where(known, values - score, 0.0).sum(1) / known.sum(1).clamp(min=1)
        return torch.where(known, score + offset[:, None], values)

    def _chunk_start(self, obs: ObservationHistory, chunk: int) -> ChunkStart:
        """Where the environments [b] are that start a chunk of h steps."""
        imagination, episodes = self.imagination, []
        fields = imagination.layout.fields
        newest = imagination.layout.newest(latest_frame(obs))
        for stream, state in zip(self.runner.starting.tolist(), newest, strict=True):
            rows = self.replay.episode_rows(stream, fields)
            # A step that nothing is read of follows, since a window begins at a step.
            states = torch.cat([imagination.layout.vectors(rows), state.expand(2, -1)])
            actions = torch.cat([rows["action"].cpu(), rows["action"].new_zeros(1, rows["action"].shape[1])])
            episodes.append(Episode(states, actions, success=False))
        steps = Steps(episodes, imagination.config.context_chunks)
        return chunk_start(steps.windows(steps.last.unique() - 1, chunk))
