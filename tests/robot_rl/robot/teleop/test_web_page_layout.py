"""What the page shows and offers, in a real browser at the sizes of a desk and of a phone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser, Page

from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.protocol.messages import Mode
from robot_rl.hardware.teleop.operator_display import OperatorDisplay, ProgramStatus
from robot_rl.hardware.teleop.web.settings import WebSettings
from robot_rl.hardware.teleop.web.web_device import WebDevice
from tests.hardware.processes import eventually
from tests.hardware.test_camera_events import serving
from tests.robot_rl.browser import launched, opened, take, until

DESK: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
ACROSS: dict[str, Any] = {"viewport": {"width": 844, "height": 390}, "has_touch": True, "is_mobile": True}
SIZES = pytest.mark.parametrize(
    "size",
    [
        pytest.param(DESK, id="desk"),
        pytest.param(PHONE, id="phone"),
        pytest.param(ACROSS, id="across", marks=pytest.mark.full),
    ],
)
CAMERAS = ("agentview", "robot0_eye_in_hand")
READY = ProgramStatus(task="recording", episode=3, marks=("begin", "discard"))
SEVERAL = replace(READY, task="recording: open the drawer", marks=(*READY.marks, "next"))
"""With several instructions, the page shows every button it has."""
RUNNING = replace(READY, running=True, seconds=4.0, marks=("success", "failure", "discard"))


class Shown(NamedTuple):
    robot: RobotClient
    display: OperatorDisplay
    url: str


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """The page of an arm with two cameras, and of a program that does what a test says."""
    folder = tmp_path_factory.mktemp("r")
    with serving(folder, cameras={name: {} for name in CAMERAS}) as served:
        display = OperatorDisplay(str(served.address))
        with WebDevice(WebSettings(port=0), display) as device:
            yield Shown(served.robot, display, device.url)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@contextmanager
def fault(shown: Shown) -> Iterator[None]:
    shown.robot.stop("a test")
    eventually(lambda: shown.robot.sample().mode is Mode.FAULT, "the arm has a fault")
    yield
    with RobotClient(shown.display.address, "mender", "operator", timeout=30.0) as mender:
        mender.acknowledge("the test is over")


def active(page: Page) -> set[str]:
    """The buttons of episodes that can be pressed."""
    names = ("begin", "success", "failure", "discard", "next")
    return {name for name in names if page.is_enabled(f"[data-mark={name}]")}


def test_buttons_of_episodes_can_be_pressed_only_when_they_do_something(
    shown: Shown, chromium: Browser
) -> None:
    shown.display.program = READY
    with opened(chromium, shown.url) as page:
        page.wait_for_timeout(300)
        assert active(page) == set()
        take(page)
        assert page.is_hidden("[data-mark=next]")
        for program in (READY, RUNNING, SEVERAL, ProgramStatus(task="teleoperation, not recorded")):
            shown.display.program = program
            until(page, lambda program=program: active(page) == set(program.marks))


def test_the_page_says_that_an_episode_has_to_be_begun(shown: Shown, chromium: Browser) -> None:
    shown.display.program = READY
    with opened(chromium, shown.url) as page:
        until(page, lambda: page.inner_text("#clock") == "take control, then BEGIN")
        take(page)
        until(page, lambda: page.inner_text("#clock") == "not started: BEGIN")
        shown.display.program = RUNNING
        until(page, lambda: page.inner_text("#clock") == "4 s")
        shown.display.program = ProgramStatus(task="teleoperation, not recorded")
        until(page, lambda: page.inner_text("#clock") == "")


def test_discard_without_an_open_episode_is_labelled_new_scene(shown: Shown, chromium: Browser) -> None:
    def label(page: Page) -> str:
        return page.inner_text("[data-mark=discard]").split("\n")[0].removesuffix("d").strip()

    shown.display.program = READY
    with opened(chromium, shown.url) as page:
        take(page)
        until(page, lambda: label(page) == "NEW SCENE")
        shown.display.program = RUNNING
        until(page, lambda: label(page) == "DISCARD")
        shown.display.program = ProgramStatus(task="teleoperation, not recorded")
        until(page, lambda: active(page) == set())
        assert label(page) == "DISCARD"


def test_motion_by_keys_is_shown_on_the_pads(shown: Shown, chromium: Browser) -> None:
    with opened(chromium, shown.url) as page:
        take(page)
        knob = "([...document.querySelectorAll('.knob')].map(k => { const b = k.getBoundingClientRect(), p = "
        knob += "k.parentElement.getBoundingClientRect(); return [Math.round(b.x + b.width / 2 - p.x - "
        knob += "p.width / 2), Math.round(b.y + b.height / 2 - p.y - p.height / 2)]; }))"
        # Held and read within one task of the page: on a slow machine it lets go in between.
        press = "(key) => { dispatchEvent(new KeyboardEvent('keydown', { code: key, key: key })); const at = "
        press += knob + "; dispatchEvent(new KeyboardEvent('keyup', { code: key, key: key })); return at; }"
        for key, pad, axis, sign in (
            *(("KeyI", 0, 1, -1), ("KeyK", 0, 1, 1), ("KeyJ", 0, 0, -1), ("KeyL", 0, 0, 1)),
            *(("KeyU", 1, 1, -1), ("KeyO", 1, 1, 1)),
        ):
            knobs = page.evaluate(press, key)
            assert sign * knobs[pad][axis] > 40, key
            assert abs(knobs[pad][1 - axis]) <= 1
            assert max(map(abs, knobs[1 - pad])) <= 1
            assert max(abs(value) for one in page.evaluate(knob) for value in one) <= 1, "let go"


def boxes(page: Page, *selectors: str) -> list[tuple[str, dict[str, float]]]:
    found = []
    for selector in selectors:
        for element in page.locator(selector).all():
            box = element.bounding_box()
            assert box, selector
            found.append((selector, {**box}))
    return found


def overlap(one: dict[str, float], other: dict[str, float]) -> bool:
    return all(
        one[at] + one[size] > other[at] + 0.5 and other[at] + other[size] > one[at] + 0.5
        for at, size in (("x", "width"), ("y", "height"))
    )


def await_images(page: Page) -> None:
    until(page, lambda: page.evaluate("canvases.length === 2 && canvases.every((one) => one.at > 0)"))


@SIZES
def test_messages_cover_neither_cameras_nor_buttons(
    shown: Shown, chromium: Browser, size: dict[str, Any]
) -> None:
    shown.display.program = SEVERAL
    with opened(chromium, shown.url, **size) as page:
        await_images(page)
        with fault(shown):
            page.wait_for_selector("#alarm:visible")
            page.evaluate("notice('grasp: hold it a little longer', true)")
            page.wait_for_timeout(200)
            messages = boxes(page, "#alarm", "#notice")
            others = boxes(page, "canvas", "button:visible", ".pad", "#mode", "#figures")
            for message, place in messages:
                assert place["width"] > 50
                for other, where in others:
                    assert not overlap(place, where), f"{message} covers {other}"


@SIZES
def test_a_camera_is_as_large_as_its_image_and_has_its_whole_name(
    shown: Shown, chromium: Browser, size: dict[str, Any]
) -> None:
    with opened(chromium, shown.url, **size) as page:
        await_images(page)
        page.wait_for_timeout(200)
        views = page.locator("#views").bounding_box()
        assert views
        for name in CAMERAS:
            canvas = page.locator(f"canvas[data-camera={name}]")
            told = canvas.evaluate(
                "(c) => [c.width / c.height, c.clientWidth / c.clientHeight, c.clientWidth]"
            )
            assert told[0] == pytest.approx(told[1], abs=0.03)
            assert told[2] >= 0.44 * min(views["width"], views["height"])
            caption = canvas.evaluate(
                "(c) => { const f = c.parentElement.firstChild; return [f.innerText, f.scrollWidth <= "
                "f.clientWidth + 1, getComputedStyle(f.firstChild).textOverflow] }"
            )
            assert caption[0].startswith(name)
            assert caption[1:] == [True, "clip"]
            box = canvas.bounding_box()
            assert box
            assert box["y"] >= views["y"] - 1
            assert box["y"] + box["height"] <= views["y"] + views["height"] + 1
        page.locator("figure").first.click()
        until(page, lambda: [one.is_visible() for one in page.locator("figure").all()] == [True, False])


@SIZES
def test_the_speed_buttons_say_what_they_are(shown: Shown, chromium: Browser, size: dict[str, Any]) -> None:
    shown.display.program = SEVERAL
    with opened(chromium, shown.url, **size) as page:
        page.wait_for_selector("[data-mark=next]:visible")
        assert page.locator("#speed").is_visible()
        assert page.inner_text("#speed") == "speed"
        assert page.get_by_role("group", name="speed").get_by_role("button").count() == 3
        # No button's text is wider than the button, and none is off the screen.
        for button in page.locator("button:visible").all():
            assert button.evaluate("(b) => b.scrollWidth <= b.clientWidth + 1"), button.inner_text()
            box = button.bounding_box()
            assert box
            assert box["x"] + box["width"] <= size["viewport"]["width"]
