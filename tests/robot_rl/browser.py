"""A real browser, without a window, at the page that moves an arm."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from tests.hardware.processes import PATIENCE


@contextmanager
def launched() -> Iterator[Browser]:
    """Chromium."""
    # Where there is none, Playwright takes its own, or says how to get it.
    known = (shutil.which(name) for name in ("chromium", "google-chrome"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=next(filter(None, known), None), args=["--no-sandbox"]
        )
        yield browser
        browser.close()


@contextmanager
def opened(chromium: Browser, url: str, **how: Any) -> Iterator[Page]:
    """A page that is connected, in which nothing may go wrong."""
    faults: list[str] = []
    context = chromium.new_context(**{"viewport": {"width": 1280, "height": 800}, **how})
    page = context.new_page()
    page.set_default_timeout(PATIENCE * 1e3)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
    page.goto(url)
    page.wait_for_selector("#control:enabled")
    yield page
    assert faults == []
    context.close()


def take(page: Page) -> None:
    """The control of the arm, when whoever had it before has left."""
    page.click("#control.free")
    page.wait_for_selector("body.mine")


def until(page: Page, true: Callable[[], bool]) -> None:
    """Wait, while the page lives."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        page.wait_for_timeout(30)
