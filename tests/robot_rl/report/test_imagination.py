"""The page about a run's world model."""

import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
import yaml

from robot_rl.cli.main import main
from robot_rl.errors import UserError
from robot_rl.imagination.config import StateModelConfig
from robot_rl.imagination.episodes import Episode
from robot_rl.report.imagination_data import measure_horizon, read_imagination
from robot_rl.report.imagination_page import write_imagination_report
from robot_rl.report.imagination_videos import imagined_states
from tests.robot_rl.imagination.point_task import CHUNK, Oracle, PointRun
from tests.robot_rl.report.test_report import Page
from tests.robot_rl.world_model_server.test_conformance import episodes

SMALL = StateModelConfig(
    refit_every=4,
    pool=6,
    branches=16,
    first_updates=60,
    fit_updates=10,
    hidden=[16],
    batch_size=32,
    members=2,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the point task, with what a training's own command writes beside it."""
    directory = tmp_path_factory.mktemp("runs") / "point"
    PointRun(directory, steps=900, imagination=SMALL).train()
    task, method = {"name": "point", "env": "Point"}, {"name": "residual_chunk"}
    config = {"task": task, "method": method, "imagination": asdict(SMALL)}
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    return directory


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    return Page(write_imagination_report(run))


def test_the_page_shows_errors_uncertainty_coverage_success_and_the_gate(page: Page) -> None:
    for heading in (
        "Error over horizon",
        "Uncertainty and error",
        "Interval coverage",
        "Success",
        "The gate",
    ):
        assert heading in page.text
    labels = [attributes.get("aria-label") or "" for tag, attributes in page.tags if tag == "svg"]
    figures = ("length of a rollout", "Coverage", "Error over uncertainty", "characteristic", "share")
    for figure in (*figures, "R + γV, newest episodes"):
        assert any(figure in label for label in labels), figure


def test_the_page_has_no_external_resources_and_no_double_ids(page: Page) -> None:
    assert not re.search(r"https?://|@import|<script|<link", page.source)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    references = set(re.findall(r'(?:href="|url\()#([^")]+)', page.source))
    assert references <= set(ids)


def test_numbers_on_the_page_are_those_of_the_checkpoint(run: Path, page: Page) -> None:
    data = read_imagination(run)
    assert f"{len(data.episodes)} episodes, of which the model has learned from {data.learned}" in page.text
    assert f"the newest {len(data.pool)} tested ones" in page.text


def test_a_scene_that_cannot_be_drawn_leaves_a_sentence_instead_of_videos(page: Page) -> None:
    assert page.count("video") == 0
    assert "so there are no videos" in page.text


def test_errors_over_the_horizon_are_those_of_rollouts_without_correction(run: Path) -> None:
    data = replace(read_imagination(run), model=Oracle(), episodes=episodes(12, 16), learned=8)
    found = measure_horizon(data)
    assert found
    assert found.steps == [CHUNK, 2 * CHUNK, 3 * CHUNK, 4 * CHUNK]
    # Windows that begin at every chunk of four episodes of four chunks.
    assert found.windows == [16, 12, 8, 4]
    # The dynamics are exact, and linear.
    assert max(found.model) < 1e-4
    assert max(found.linear) < 1e-2
    ends = [each.states[CHUNK::CHUNK] - each.states[:-CHUNK:CHUNK] for each in data.episodes[8:]]
    assert found.persistence[0] == pytest.approx(
        float((torch.cat(ends) / Oracle.scale).square().mean().sqrt()), rel=1e-4
    )


def test_imagined_states_follow_the_model_from_real_ones() -> None:
    [episode] = episodes(1, 10)
    imagined = imagined_states(Oracle(), episode, CHUNK, 2)
    assert imagined.shape == (11, 2)
    assert torch.allclose(torch.from_numpy(imagined), episode.states, atol=1e-5)
    shifted = Episode(episode.states, torch.zeros_like(episode.actions), success=True)
    still = imagined_states(Oracle(), shifted, CHUNK, 2)
    assert (still[1 : 2 * CHUNK + 1] == episode.states[0].numpy()).all()
    assert (still[2 * CHUNK + 1 :] == episode.states[2 * CHUNK].numpy()).all()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.yaml", "imagination: null", "is a run without imagination"),
        ("config.yaml", "- 1", "is damaged"),
        ("imagination.jsonl", "[1]\n", "a line is no decision of the gate"),
        ("imagination.jsonl", "{", "imagination.jsonl is damaged"),
        ("config.yaml", "imagination: {name: state, nonsense: 1}", "cannot be read"),
    ],
)
def test_damaged_files_are_named_in_one_line(run: Path, name: str, content: str, message: str) -> None:
    kept = (run / name).read_text()
    try:
        (run / name).write_text(content)
        with pytest.raises(UserError, match=message):
            read_imagination(run)
    finally:
        (run / name).write_text(kept)


def test_the_command_says_where_the_page_is_and_refuses_what_is_no_run(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["imagine", "report", f"run={run}", "videos=false"]) == 0
    assert f"report: {run / 'imagination.html'}" in capsys.readouterr().out
    assert main(["imagine", "report", f"run={tmp_path / 'none'}"]) == 2
    assert "does not exist" in capsys.readouterr().err
