"""A person at the page in a browser, who helps while a policy learns."""

import re
from pathlib import Path

from tests.hardware.processes import eventually
from tests.robot_rl.browser import launched, opened, take, until
from tests.robot_rl.hil.training import HUMAN, Training
from tests.robot_rl.test_deploy import serving


def test_what_is_held_in_a_browser_is_an_intervention_and_stops_are_obeyed(
    demonstrations: Path, base_run: Path, tmp_path: Path
) -> None:
    with serving(tmp_path, "task=lift", "states=seeds") as (address, _), launched() as chromium:
        training = Training(
            demonstrations,
            base_run,
            tmp_path,
            "hil.operator=web",
            "hil.device.port=0",
            f"hil.robot={address}",
            "hil.realtime=null",
            "task.horizon=200",
        )
        try:
            url = eventually(lambda: re.search(r"open (http\S+)", training.said), "the page's link")[1]
            with opened(chromium, url) as page:
                assert "training" in page.inner_text("#robot")
                take(page)
                until(page, lambda: page.inner_text("#mode") == "POLICY")
                page.keyboard.down("u")
                until(page, lambda: page.inner_text("#mode") == "HUMAN")
                page.keyboard.up("u")
                # After half a second in which nothing is held, it is the policy's again.
                until(page, lambda: page.inner_text("#mode") == "POLICY")
                page.click('[data-mark="failure"]')
                until(page, lambda: page.locator("#outcomes .failure").count() > 0)
                for button, mode in (("#stop", "FAULT"), ("[data-mark='disarm']", "IDLE")):
                    until(page, lambda: page.inner_text("#mode") == "POLICY")
                    page.click(button)
                    until(page, lambda mode=mode: page.inner_text("#mode") == mode)  # type: ignore[misc]
                    page.wait_for_timeout(1500)
                    assert page.inner_text("#mode") == mode
                    page.click("[data-mark='arm']")
                until(page, lambda: page.inner_text("#mode") == "POLICY")
            assert training.end() == 130
        finally:
            training.kill()
    replay = training.checkpoint()["replay"]
    rows = int(replay["count"][0])
    assert (replay["data.source"][0, :rows] == HUMAN).any()
