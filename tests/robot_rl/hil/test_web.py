"""Interventions from the page in a browser."""

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.conftest import RunCommand
from tests.hardware.processes import eventually
from tests.robot_rl.browser import Hands, launched, opened, take, until
from tests.robot_rl.hil.training import HUMAN, Training
from tests.robot_rl.robot.deploy.test_deploy import classifier_with, serving


@contextmanager
def training(
    demonstrations: Path, base: Path, folder: Path, *more: str, code: int = 130
) -> Iterator[tuple[Training, Page]]:
    """Train on a served task, with the operator's page in control; `code` is the exit code."""
    with serving(folder, "task=lift", "states=seeds") as (address, _), launched() as chromium:
        run = Training(
            demonstrations,
            base,
            folder,
            "hil.operator=web",
            "hil.device.port=0",
            f"hil.robot={address}",
            "hil.realtime=null",
            "task.horizon=200",
            *more,
        )
        try:
            url = eventually(lambda: re.search(r"open (http\S+)", run.output), "the page's link")[1]
            with opened(chromium, url) as page:
                take(page)
                yield run, page
            assert run.end() == code
        finally:
            run.kill()


def shows(page: Page, mode: str) -> None:
    until(page, lambda: page.inner_text("#mode") == mode)


def press(page: Page, mark: str) -> None:
    page.click(f"[data-mark='{mark}']")


def press_until(page: Page, mark: str, true: Callable[[], bool]) -> None:
    """On a busy machine a press may come too late to count."""

    def pressed() -> bool:
        press(page, mark)
        page.wait_for_timeout(500)
        return true()

    until(page, pressed)


@pytest.mark.full
def test_held_keys_are_interventions_and_stops_are_obeyed_in_a_browser(
    demonstrations: Path, base_run: Path, tmp_path: Path
) -> None:
    with training(demonstrations, base_run, tmp_path) as (run, page):
        until(page, lambda: "training" in page.inner_text("#robot"))
        shows(page, "POLICY")
        hands = Hands(page)

        def intervene() -> bool:
            hands.hold("u")
            return page.inner_text("#mode") == "HUMAN"

        until(page, intervene)
        hands.hold()
        # The policy drives again after half a second without input.
        shows(page, "POLICY")
        press_until(page, "failure", lambda: page.locator("#outcomes .failure").count() > 0)
        for stop, mode in (("#stop", "FAULT"), ("[data-mark='disarm']", "IDLE")):
            shows(page, "POLICY")
            page.click(stop)
            shows(page, mode)
            page.wait_for_timeout(1500)
            assert page.inner_text("#mode") == mode
            press_until(page, "arm", lambda mode=mode: page.inner_text("#mode") != mode)  # type: ignore[misc]
        shows(page, "POLICY")
    replay = run.checkpoint()["replay"]
    rows = int(replay["count"][0])
    assert (replay["data.source"][0, :rows] == HUMAN).any()


@pytest.mark.full
def test_an_episode_begins_when_the_operator_confirms(
    demonstrations: Path, base_run: Path, tmp_path: Path
) -> None:
    with training(demonstrations, base_run, tmp_path, "hil.reset=operator") as (run, page):
        for number in range(2):
            run.await_text(f"episode {number}: prepare the scene")
            page.wait_for_timeout(1000)
            assert page.inner_text("#mode") == "IDLE"
            press(page, "begin")
            shows(page, "POLICY")
            press(page, "discard")
            until(page, lambda number=number: page.locator("#outcomes .discarded").count() > number)  # type: ignore[misc]


@pytest.mark.full
def test_a_success_that_was_none_is_taken_back_before_the_next_episode_begins(
    demonstrations: Path, base_run: Path, tmp_path: Path, robot_rl: RunCommand
) -> None:
    # It sees no success; the person marks them.
    judge = classifier_with(1e9, demonstrations, tmp_path, robot_rl)
    options = ("hil.reset=operator", f"hil.success={judge}", "hil.realtime=null")
    with training(demonstrations, base_run, tmp_path, *options) as (run, page):
        for number in range(2):
            run.await_text(f"episode {number}: prepare the scene")
            press(page, "begin")
            shows(page, "POLICY")
            press(page, "success")
            until(page, lambda number=number: page.locator("#outcomes .success").count() > number)  # type: ignore[misc]
        press_until(page, "failure", lambda: page.locator("#outcomes .failure").count() == 1)
        run.await_text("episode 2: prepare the scene")
        press(page, "begin")
        run.await_text("the operator has taken back the last success")
    replay = run.checkpoint()["replay"]
    rows = int(replay["count"][0])
    ends = replay["data.terminated"][0, :rows]
    assert replay["data.reward"][0, :rows][ends].tolist() == [1.0]
    assert replay["data.reward"][0, :rows].sum() == 1.0
    assert replay["data.last"][0, :rows].sum() >= 2


@pytest.mark.full
def test_an_actor_whose_learner_dies_while_the_scene_is_prepared_ends(
    demonstrations: Path, base_run: Path, tmp_path: Path
) -> None:
    """Nobody can begin an episode from which nothing would be learned."""
    with training(demonstrations, base_run, tmp_path, "hil.reset=operator", code=-signal.SIGKILL) as (run, _):
        run.await_text("episode 0: prepare the scene")
        actor = run.actor()
        run.process.send_signal(signal.SIGKILL)
        run.process.wait()
        run.await_text("no connection to the learner")
        eventually(lambda: not Path(f"/proc/{actor}").exists(), "the actor has ended")
