"""A real browser, without a window, at the page that moves an arm."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from tests.hardware.processes import PATIENCE

REACH = 0.42
"""Of a pad's side: full speed."""


@contextmanager
def launched() -> Iterator[Browser]:
    """Chromium."""
    # Where there is none, Playwright takes its own, or says how to get it.
    known = (shutil.which(name) for name in ("chromium", "google-chrome"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=next(filter(None, known), None), args=["--no-sandbox"], timeout=PATIENCE * 1e3
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


class Hands:
    """A person's, at keyboard and mouse: what is held is pressed again where the arm does not follow."""

    def __init__(self, page: Page) -> None:
        box = page.locator("#left").bounding_box()
        assert box
        self._page, self._center = page, (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        self._reach = REACH * min(box["width"], box["height"])
        self._keys: set[str] = set()
        self._pad: tuple[float, float] | None = None
        self._followed = time.monotonic()

    def hold(self, *keys: str, pad: tuple[float, float] | None = None) -> None:
        """These keys, and the left pad pushed forward and left; and nothing else."""
        self._patience()
        for key in self._keys - set(keys):
            self._page.keyboard.up(key)
        for key in set(keys) - self._keys:
            self._page.keyboard.down(key)
        self._keys = set(keys)
        if pad is not None:
            forward, left = pad
            x, y = self._center
            if self._pad is None:
                self._page.mouse.move(x, y)
                self._page.mouse.down()
            self._page.mouse.move(x - self._reach * left, y - self._reach * forward)
        elif self._pad is not None:
            self._page.mouse.up()
        self._pad = pad

    def _patience(self) -> None:
        held = self._keys or self._pad is not None
        now = time.monotonic()
        if not held or self._page.inner_text("#mode") == "HUMAN":
            self._followed = now
        elif now - self._followed > 1.0:
            self._followed = now
            keys, pad = self._keys, self._pad
            self.hold()
            self._page.wait_for_timeout(150)
            self.hold(*keys, pad=pad)
