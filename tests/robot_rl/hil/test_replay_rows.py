"""Records of an actor fit the replay or are rejected; each intervention is written once."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from robot_rl.data.replay_buffer import ReplayBuffer
from robot_rl.errors import UserError
from robot_rl.hardware.protocol.large_messages import pack
from robot_rl.hil.intervention_stats import FILE, InterventionStats
from robot_rl.hil.link.messages import End, Step
from robot_rl.hil.replay_rows import to_row

REPLAY = ReplayBuffer(10, 1, 2, {"state": ((3,), torch.float32)})
STEP = Step(
    episode=0,
    index=0,
    version=0,
    source="human",
    fields={"state": pack(np.arange(3, dtype=np.float32))},
    action=pack(np.array([0.5, -0.5], np.float32)),
    proposed=pack(np.zeros(2, np.float32)),
    reward=0.0,
    terminated=False,
)


def test_a_step_becomes_a_row() -> None:
    row = to_row(STEP, REPLAY)
    np.testing.assert_array_equal(row.fields["state"], [[0, 1, 2]])
    np.testing.assert_array_equal(row.action, [[0.5, -0.5]])


def test_the_end_of_an_episode_has_no_action() -> None:
    end = End(episode=0, index=1, fields=STEP.fields, success=True, interrupted="", interventions=0)
    assert to_row(end, REPLAY).action.shape == (1, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fields": {}}, "fields  instead of state"),
        ({"fields": {"state": pack(np.zeros(2, np.float32))}}, r"state has shape \(2,\)"),
        ({"action": pack(np.zeros(3, np.float32))}, "not 2 finite numbers"),
        ({"action": pack(np.array([np.nan, 0], np.float32))}, "not 2 finite numbers"),
        ({"source": "nobody"}, "unknown source 'nobody'"),
    ],
)
def test_a_record_that_does_not_fit_is_rejected(change: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        to_row(msgspec.structs.replace(STEP, **change), REPLAY)


def add_episode(stats: InterventionStats, episode: int, sources: str) -> dict[str, float]:
    for index, letter in enumerate(sources):
        source = {"p": "policy", "h": "human", "-": "handover"}[letter]
        stats.step(index, source, np.array([index, 1.0]), np.array([0.0, -1.0]))
    return stats.end_episode(episode, success=True)


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


def test_interventions_are_counted_and_written_with_the_policys_actions(tmp_path: Path) -> None:
    metrics = add_episode(InterventionStats(tmp_path, 0), 0, "pphh-phhhp")
    assert metrics == {
        "hil/intervention_rate": 0.5,
        "hil/interventions": 2.0,
        "hil/intervention_steps": 2.5,
        "hil/alone": 0.0,
    }
    first, second = lines(tmp_path)
    assert (first["first_step"], first["steps"]) == (2, 2)
    assert (second["first_step"], second["steps"]) == (6, 3)
    assert second["applied"] == [[6.0, 1.0], [7.0, 1.0], [8.0, 1.0]]
    assert second["proposed"] == [[0.0, -1.0]] * 3


def test_an_episode_without_interventions_counts_as_alone(tmp_path: Path) -> None:
    metrics = add_episode(InterventionStats(tmp_path, 0), 0, "ppp")
    assert metrics == {"hil/intervention_rate": 0.0, "hil/interventions": 0.0, "hil/alone": 1.0}
    assert lines(tmp_path) == []


def test_a_resumed_run_writes_no_intervention_twice(tmp_path: Path) -> None:
    stats = InterventionStats(tmp_path, 0)
    for episode in range(3):
        add_episode(stats, episode, "ph")
    stats.step(0, "human", np.zeros(2), np.zeros(2))
    state = stats.state_dict()
    with (tmp_path / FILE).open("a") as file:
        # A crash has cut the line of the next episode.
        file.write('{"episode": 1, "first_st')
    resumed = InterventionStats(tmp_path, 1)
    assert [line["episode"] for line in lines(tmp_path)] == [0]
    resumed.load_state_dict(state)
    resumed.step(1, "human", np.ones(2), np.zeros(2))
    assert resumed.end_episode(1, success=False)["hil/intervention_steps"] == 2.0
    assert lines(tmp_path)[-1]["applied"] == [[0.0, 0.0], [1.0, 1.0]]


def test_a_resumed_actor_deletes_no_interventions_of_another(tmp_path: Path) -> None:
    for name in ("actor1", "actor2"):
        stats = InterventionStats(tmp_path, 0, name)
        for episode in range(2):
            add_episode(stats, episode, "ph")
    InterventionStats(tmp_path, 1, "actor1")
    found = [(line["actor"], line["episode"]) for line in lines(tmp_path)]
    assert found == [("actor1", 0), ("actor2", 0), ("actor2", 1)]
