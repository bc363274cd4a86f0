"""What a learner keeps of one of its actors: a stream of the replay, interventions, outcomes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data.replay_buffer import SOURCES
from robot_rl.hil.intervention_stats import InterventionStats
from robot_rl.hil.link.messages import End, Step
from robot_rl.hil.replay_rows import to_row
from robot_rl.training.rollout import RECENT
from robot_rl.training.updater import Updater


class ActorStream:
    """Stores the records of one actor in a stream of the replay, so that no window mixes two actors."""

    def __init__(
        self, number: int, name: str, updater: Updater, directory: Path, state: Mapping[str, Any] | None
    ) -> None:
        """Start, or resume from `state_dict`.

        Args:
            number: number of the stream.
            name: name in metrics and files, "" for the only actor of a run.
            updater: updates the learner from the replay.
            directory: directory of the run.
            state: state to resume from.
        """
        self.name = name
        self.position = (state["place"][0], state["place"][1]) if state else (0, 0)
        """Position of the next record at the start."""
        self.steps: int = state["step"] if state else 0
        """Steps received from this actor."""
        self._spool: str = state.get("spool", "") if state else ""
        """Id of the spool that was used last, "" before the first."""
        self._received: dict[str, int] = dict(state.get("received", {})) if state else {}
        """First episode that was not received from each spool used before, by its id."""
        self.outcomes: list[list[float]] = state["outcomes"] if state else []
        """Success and intervention rate of the newest episodes."""
        self.staleness: list[int] = []
        """By how many versions the weights of the steps since the last log were old."""
        self._number, self._streams, self._updater = number, np.array([number]), updater
        self._stats = InterventionStats(directory, self.position[0], name)
        if state:
            self._stats.load_state_dict(state["helped"])

    def is_current(self, spool: str) -> bool:
        """Whether this is the spool that was used last, or the first one."""
        return self._spool in ("", spool)

    def use_spool(self, spool: str, episodes: Sequence[int], first: int) -> None:
        """Continue with the episodes from `first` on of an actor that has this spool.

        Raises:
            ValueError: if the spool has earlier episodes that were not received. Those with the same numbers
                came from another spool.
        """
        if not self.is_current(spool):
            received = self._received.get(spool, 0)
            if missing := sum(received <= episode < first for episode in episodes):
                raise ValueError(
                    f"the actor's spool has {missing} episodes that cannot be added any more, because the "
                    "run went on with another spool: give spool=… another folder"
                )
            self._received[self._spool] = first
        self._spool = spool

    def add_step(self, step: Step, *, takeover_fails: bool) -> None:
        """Store a step; `takeover_fails` ends the episode for the critics where a person takes over.

        Raises:
            UserError: if it does not fit the replay.
        """
        replay = self._updater.replay
        row = to_row(step, replay)
        if takeover_fails and step.index and step.source in ("human", "handover"):
            replay.terminate_at_takeover(self._number)
        replay.add(
            self._streams,
            action=row.action,
            reward=np.array([step.reward], np.float32),
            terminated=np.array([step.terminated]),
            source=SOURCES.index(step.source),
            **row.fields,
        )
        self._stats.step(step.index, step.source, row.action[0], row.proposed[0])
        self.steps += 1

    def end_episode(self, end: End) -> dict[str, float]:
        """Store the end of an episode; returns its metrics, none if it was interrupted.

        Raises:
            UserError: if it does not fit the replay.
        """
        row = to_row(end, self._updater.replay)
        self._updater.replay.end(self._streams, **row.fields)
        self._updater.end_episode(self._number, success=end.success, interrupted=bool(end.interrupted))
        metrics = self._stats.end_episode(end.episode, end.success)
        if end.interrupted:
            return {}
        self.outcomes = [*self.outcomes, [float(end.success), metrics["hil/intervention_rate"]]][-RECENT:]
        metrics |= {"train/success": float(end.success), "train/episode_length": float(end.index)}
        metrics["hil/late"] = end.late / max(end.index, 1)
        metrics["train/base_queries"] = end.queries / max(end.index, 1)
        return metrics | self._labelled(metrics)

    def cut_episode(self) -> None:
        """End the open episode of an actor that is gone."""
        self._updater.replay.cut(self._number)
        self._updater.end_episode(self._number, success=False, interrupted=True)
        self._stats.discard_episode()

    def metrics(self) -> dict[str, float]:
        """Metrics of this actor since the last call; none for the only actor of a run."""
        staleness, self.staleness = float(np.mean(self.staleness or [0])), []
        return self._labelled({"hil/steps": self.steps, "hil/staleness": staleness})

    @property
    def progress(self) -> dict[str, float]:
        """Success of this actor for the progress line; nothing for the only actor of a run."""
        return {self.name: mean_outcome(self.outcomes)[0]} if self.name else {}

    def state_dict(self) -> dict[str, Any]:
        """State without the position of the next record, `place`."""
        return {
            "step": self.steps,
            "spool": self._spool,
            "received": self._received,
            "outcomes": self.outcomes,
            "helped": self._stats.state_dict(),
        }

    def _labelled(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """The same metrics as `hil/<name>/…`."""
        if not self.name:
            return {}
        return {f"hil/{self.name}/{key.split('/')[-1]}": value for key, value in metrics.items()}


def mean_outcome(outcomes: list[list[float]]) -> tuple[float, float]:
    """Mean success and intervention rate of episodes; 0 without any."""
    success, rate = np.mean(outcomes or [[0.0, 0.0]], axis=0).tolist()
    return success, rate
