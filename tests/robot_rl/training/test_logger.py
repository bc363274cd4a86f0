"""metrics.csv and TensorBoard of a run, also after resuming."""

import math
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from robot_rl.errors import UserError
from robot_rl.training.logger import RunLogger, read_metrics


class Clock:
    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def test_rows_of_metrics_csv(tmp_path: Path) -> None:
    clock = Clock()
    logger = RunLogger(tmp_path, clock=clock)
    clock.now += 1.5
    logger.log(10, **{"train/success": 1, "learn/critic_loss": 0.1 + 0.2})
    logger.close()
    assert logger.path.read_text() == (
        "step,seconds,name,value\n10,1.5,train/success,1.0\n10,1.5,learn/critic_loss,0.30000000000000004\n"
    )
    assert read_metrics(logger.path) == {
        "train/success": [(10, 1.5, 1.0)],
        "learn/critic_loss": [(10, 1.5, 0.1 + 0.2)],
    }


@given(st.lists(st.floats(), min_size=1, max_size=5))
def test_floats_are_read_back_exactly(values: list[float]) -> None:
    assert [float(repr(v)) for v in values] == pytest.approx(values, rel=0, abs=0, nan_ok=True)


def test_values_that_are_not_finite_are_logged(tmp_path: Path) -> None:
    logger = RunLogger(tmp_path)
    for value in (math.nan, math.inf, -math.inf):
        logger.log(0, x=value)
    nan, inf, minus = [value for _, _, value in read_metrics(logger.path)["x"]]
    assert math.isnan(nan)
    assert (inf, minus) == (math.inf, -math.inf)


def test_resume_drops_rows_after_the_checkpoint_and_continues_the_seconds(tmp_path: Path) -> None:
    clock = Clock()
    first = RunLogger(tmp_path, clock=clock)
    clock.now += 5
    first.log(1, x=1.0)
    state = first.state_dict()
    first.log(1, x=1.5)  # logged after the checkpoint of the same step
    first.log(2, x=2.0)
    with open(first.path, "a") as file:
        file.write("3,7.")  # killed while writing
    first.close()

    clock = Clock(9000.0)
    second = RunLogger(tmp_path, clock=clock)
    second.load_state_dict(state)
    clock.now += 2
    second.log(2, x=20.0)
    assert read_metrics(second.path) == {"x": [(1, 5.0, 1.0), (2, 7.0, 20.0)]}
    assert second.state_dict()["seconds"] == 7.0


def test_without_a_state_the_file_is_overwritten(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        logger = RunLogger(tmp_path)
        logger.log(0, x=value)
        logger.close()
    assert [v for _, _, v in read_metrics(logger.path)["x"]] == [2.0]


def test_unused_logger_writes_nothing(tmp_path: Path) -> None:
    RunLogger(tmp_path / "run").close()
    assert not (tmp_path / "run").exists()


def test_state_before_the_first_row(tmp_path: Path) -> None:
    state = RunLogger(tmp_path, clock=Clock()).state_dict()
    logger = RunLogger(tmp_path, clock=Clock())
    logger.load_state_dict(state)
    logger.log(0, x=1.0)
    assert read_metrics(logger.path) == {"x": [(0, 0.0, 1.0)]}


def test_resume_with_another_file_is_an_error(tmp_path: Path) -> None:
    logger = RunLogger(tmp_path)
    logger.log(0, x=1.0)
    state = logger.state_dict()
    logger.close()
    logger.path.write_text("step,")
    with pytest.raises(UserError, match=r"metrics\.csv"):
        RunLogger(tmp_path).load_state_dict(state)
    assert logger.path.read_text() == "step,"


def test_reading_skips_an_incomplete_last_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,seconds,name,value\n1,0.5,x,2.0\n2,0.9,x,3")
    assert read_metrics(path) == {"x": [(1, 0.5, 2.0)]}


@pytest.mark.parametrize("text", ["a,b\n", "step,seconds,name,value\n1,x\n2,0.5,x,1.0\n"])
def test_reading_another_format_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=r"metrics\.csv"):
        read_metrics(path)


def test_error_for_a_missing_file_names_the_command_that_writes_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="robot-rl train"):
        read_metrics(tmp_path / "metrics.csv")


def test_names_that_break_the_csv_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name"):
        RunLogger(tmp_path).log(0, **{"a,b": 1.0})


def test_tensorboard_hides_values_after_the_checkpoint(tmp_path: Path) -> None:
    first = RunLogger(tmp_path)
    first.log(1, **{"train/success": 1.0})
    state = first.state_dict()
    first.log(2, **{"train/success": 0.0})
    first.close()
    time.sleep(1.1)  # TensorBoard orders its files by the second in their names
    second = RunLogger(tmp_path)
    second.load_state_dict(state)
    second.log(3, **{"train/success": 1.0})
    second.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/success")] == [(1, 1.0), (3, 1.0)]
