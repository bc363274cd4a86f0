"""A person at the page in a browser, who helps while a policy learns."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.hardware.processes import eventually
from tests.robot_rl.browser import Hands, launched, opened, take, until
from tests.robot_rl.hil.training import HUMAN, Training
from tests.robot_rl.robot.deploy.test_deploy import serving


@contextmanager
def training(demonstrations: Path, base: Path, folder: Path, *more: str) -> Iterator[tuple[Training, Page]]:
    """On a served arm, with the page of whoever helps, which controls."""
    with serving(folder, "task=lift", "states=seeds") as (address, _), launched() as chromium:
        made = Training(
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
            url = eventually(lambda: re.search(r"open (http\S+)", made.said), "the page's link")[1]
            with opened(chromium, url) as page:
                take(page)
                yield made, page
            assert made.end() == 130
        finally:
            made.kill()


def shows(page: Page, mode: str) -> None:
    until(page, lambda: page.inner_text("#mode") == mode)


def press(page: Page, mark: str) -> None:
    page.click(f"[data-mark='{mark}']")


def test_what_is_held_in_a_browser_is_an_intervention_and_stops_are_obeyed(
    demonstrations: Path, base_run: Path, tmp_path: Path
) -> None:
    with training(demonstrations, base_run, tmp_path) as (run, page):
        until(page, lambda: "training" in page.inner_text("#robot"))
        shows(page, "POLICY")
        hands = Hands(page)

        def helping() -> bool:
            hands.hold("u")
            return page.inner_text("#mode") == "HUMAN"

        until(page, helping)
        hands.hold()
        # After half a second in which nothing is held, it is the policy's again.
        shows(page, "POLICY")
        press(page, "failure")
        until(page, lambda: page.locator("#outcomes .failure").count() > 0)
        for stop, mode in (("#stop", "FAULT"), ("[data-mark='disarm']", "IDLE")):
            shows(page, "POLICY")
            page.click(stop)
            shows(page, mode)
            page.wait_for_timeout(1500)
            assert page.inner_text("#mode") == mode
            press(page, "arm")
        shows(page, "POLICY")
    replay = run.checkpoint()["replay"]
    rows = int(replay["count"][0])
    assert (replay["data.source"][0, :rows] == HUMAN).any()


@pytest.mark.full
def test_an_episode_begins_when_whoever_helps_says_so(
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
