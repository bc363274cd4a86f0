"""`robot-rl bench scale` reads the speed of runs from their metrics."""

import json
from typing import TYPE_CHECKING

import pytest

from robot_rl.bench.scale import speed_of
from robot_rl.cli.main import main
from robot_rl.errors import UserError

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster


def test_the_speed_is_that_between_the_first_and_the_last_row_of_updates() -> None:
    speed = speed_of(
        {
            "learn/critic_loss": [(200, 10.0, 1.0), (600, 11.0, 1.0), (1000, 14.0, 1.0)],
            "workers/store_us": [(200, 10.0, 900.0), (600, 11.0, 20.0), (1000, 14.0, 40.0)],
        }
    )
    assert (speed.steps_per_s, speed.updates_per_s) == (200.0, 100.0)
    assert (speed.store_us, speed.lag_ms) == (30.0, None)
    with pytest.raises(UserError, match="too short"):
        speed_of({"learn/critic_loss": [(200, 10.0, 1.0)]})


@pytest.mark.full
def test_the_last_line_holds_one_process_and_every_number_of_workers(
    cluster: "Cluster", capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "scale", "counts=[1]", "envs=2", "steps=1000", "json=true"]) == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert record["one_process_steps_per_s"] > 0
    assert record["workers"]["1"].keys() == {"steps_per_s", "updates_per_s"}
    assert record["store_us_per_transition"] > 0
    assert record["weights_lag_ms"] > 0
