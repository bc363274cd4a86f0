"""What an actor sends is what the replay keeps, or is refused; what people did is written down once."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from robot_rl.data.replay import Replay
from robot_rl.errors import UserError
from robot_rl.hil.intervention_stats import FILE, InterventionStats
from robot_rl.hil.link.messages import End, Step, pack
from robot_rl.hil.records import row_of

REPLAY = Replay(10, 1, 2, {"state": ((3,), torch.float32)})
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


def test_a_step_is_a_row() -> None:
    row = row_of(STEP, REPLAY)
    np.testing.assert_array_equal(row.fields["state"], [[0, 1, 2]])
    np.testing.assert_array_equal(row.action, [[0.5, -0.5]])


def test_the_end_of_an_episode_has_no_action() -> None:
    end = End(episode=0, index=1, fields=STEP.fields, success=True, interrupted="", interventions=0)
    assert row_of(end, REPLAY).action.shape == (1, 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fields": {}}, "fields  where state are kept"),
        ({"fields": {"state": pack(np.zeros(2, np.float32))}}, r"state of shape \(2,\)"),
        ({"action": pack(np.zeros(3, np.float32))}, "not 2 finite numbers"),
        ({"action": pack(np.array([np.nan, 0], np.float32))}, "not 2 finite numbers"),
        ({"source": "nobody"}, "a step of 'nobody'"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        row_of(msgspec.structs.replace(STEP, **change), REPLAY)


def told(helped: InterventionStats, episode: int, sources: str) -> dict[str, float]:
    for index, letter in enumerate(sources):
        source = {"p": "policy", "h": "human", "-": "handover"}[letter]
        helped.step(index, source, np.array([index, 1.0]), np.array([0.0, -1.0]))
    return helped.close(episode, success=True)


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


def test_interventions_are_counted_and_written_with_what_the_policy_proposed(tmp_path: Path) -> None:
    figures = told(InterventionStats(tmp_path, 0), 0, "pphh-phhhp")
    assert figures == {
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


def test_an_episode_without_help_is_the_policys_own(tmp_path: Path) -> None:
    figures = told(InterventionStats(tmp_path, 0), 0, "ppp")
    assert figures == {"hil/intervention_rate": 0.0, "hil/interventions": 0.0, "hil/alone": 1.0}
    assert lines(tmp_path) == []


def test_a_run_that_goes_on_writes_nothing_twice(tmp_path: Path) -> None:
    helped = InterventionStats(tmp_path, 0)
    for episode in range(3):
        told(helped, episode, "ph")
    helped.step(0, "human", np.zeros(2), np.zeros(2))
    state = helped.state_dict()
    again = InterventionStats(tmp_path, 1)
    assert [line["episode"] for line in lines(tmp_path)] == [0]
    again.load_state_dict(state)
    again.step(1, "human", np.ones(2), np.zeros(2))
    assert again.close(1, success=False)["hil/intervention_steps"] == 2.0
    assert lines(tmp_path)[-1]["applied"] == [[0.0, 0.0], [1.0, 1.0]]
