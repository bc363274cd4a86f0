"""`robot-rl teleop device=web` in a real browser: the page moves a simulated arm, and never by mistake."""

import math
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Page

from robot_rl.cli.main import main
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.protocol.messages import Mode
from tests.hardware.processes import PATIENCE, Process, eventually
from tests.hardware.teleop.line import Line
from tests.robot_rl.browser import Hands, launched, opened, take, until

MINUS = "\N{MINUS SIGN}"
GAIN = 15.0
"""Of full deflection per meter that the cube is away."""


class Teleoperation(NamedTuple):
    process: Process
    url: str
    robot: RobotClient


@pytest.fixture(scope="module")
def teleoperation() -> Iterator[Teleoperation]:
    """Lift, and the page. On a busy machine too the arm keeps the program's lease."""
    command = ["-m", "robot_rl", "teleop", "task=lift", "device=web", "device.port=0"]
    process = Process([*command, "plugins=[tests.robot_rl.unhurried]"], "Nothing is recorded")
    try:
        url, address = (re.search(what, process.output) for what in (r"open (http\S+)", r"lift at (\S+),"))
        assert url
        assert address
        with RobotClient(address[1], "test", timeout=30.0) as robot:
            yield Teleoperation(process, url[1], robot)
    finally:
        process.kill()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture
def page(teleoperation: Teleoperation, chromium: Browser) -> Iterator[Page]:
    """Of a browser that controls."""
    eventually(lambda: stands(teleoperation.robot), "the arm is armed, and at rest")
    with opened(chromium, teleoperation.url) as page:
        take(page)
        yield page


def shown(page: Page) -> dict[str, list[float]]:
    """The numbers that a person reads there."""
    rows = page.evaluate(
        "[...document.querySelectorAll('#arm tr')].map((row) => [...row.cells].map((c) => c.innerText))"
    )
    return {
        name: [float(part.replace(MINUS, "-")) for part in text.split() if part != "–"] for name, text in rows
    }


def lift(page: Page) -> None:
    """One try, by what the page shows."""
    hands = Hands(page)

    def hold_until(true: Callable[[dict[str, list[float]]], bool], *keys: str, above: bool = False) -> None:
        """And stay above the cube."""

        def done() -> bool:
            now = shown(page)
            x, y, _ = now["gripper_to_cube_pos"]
            hands.hold(*keys, pad=(limited(GAIN * x), limited(GAIN * y)) if above else None)
            return true(now)

        until(page, done)
        hands.hold()

    def off(now: dict[str, list[float]]) -> float:
        x, y, _ = now["gripper_to_cube_pos"]
        return max(abs(x), abs(y))

    hold_until(lambda now: now["gripper"][0] > 0.9, "r")
    hold_until(lambda now: off(now) < 0.008, above=True)
    hold_until(lambda now: now["gripper_to_cube_pos"][2] > -0.015, "o", above=True)
    hold_until(lambda now: off(now) < 0.006, above=True)
    hold_until(lambda now: now["gripper"][0] < 0.7, "g")
    end = time.monotonic() + 1.0
    hold_until(lambda now: time.monotonic() > end, "g")
    high = shown(page)["tool, m"][2] + 0.1
    hold_until(lambda now: now["tool, m"][2] > high or now["success"][0] > 0, "u")


def limited(value: float) -> float:
    return max(-1.0, min(1.0, value))


def stands(robot: RobotClient) -> bool:
    state = robot.sample()
    return state.mode is Mode.ARMED and max(map(abs, state.dq)) < 0.005


def tool(robot: RobotClient) -> tuple[float, ...]:
    return robot.sample().position


def push_until_moved(page: Page, robot: RobotClient, key: str = "u") -> None:
    """By holding a key, which is still held afterwards."""
    hands, start = Hands(page), tool(robot)

    def moved() -> bool:
        hands.hold(key)
        return math.dist(tool(robot), start) > 0.01 and page.locator("body.held.human").count() == 1

    until(page, moved)


def check_that_it_stays(page: Page, robot: RobotClient) -> None:
    eventually(lambda: stands(robot), "the arm is held")
    there = tool(robot)
    page.wait_for_timeout(700)
    assert math.dist(tool(robot), there) < 0.002
    assert robot.sample().mode is Mode.ARMED


@pytest.mark.full
def test_a_person_lifts_the_cube(teleoperation: Teleoperation, page: Page) -> None:
    robot = teleoperation.robot
    before = robot.events()[-1].seq

    def done() -> bool:
        # The task itself says that it is done: the program then lets the next scene begin.
        return any(event.what == "scene" for event in robot.events(before))

    for _ in range(4):
        lift(page)
        page.wait_for_timeout(1500)
        if done():
            break
    assert done()


def test_when_a_key_comes_up_the_arm_is_held(teleoperation: Teleoperation, page: Page) -> None:
    push_until_moved(page, teleoperation.robot)
    page.keyboard.up("u")
    check_that_it_stays(page, teleoperation.robot)
    until(page, lambda: page.inner_text("#mode") == "ARMED")
    assert math.dist(shown(page)["tool, m"], tool(teleoperation.robot)) < 0.003


@pytest.mark.parametrize("how", ["another tab", "hidden"])
def test_a_page_that_nobody_sees_lets_go(teleoperation: Teleoperation, page: Page, how: str) -> None:
    session = page.context.new_cdp_session(page)
    session.send("Emulation.setFocusEmulationEnabled", {"enabled": False})
    page.bring_to_front()
    push_until_moved(page, teleoperation.robot)
    if how == "another tab":
        page.context.new_page().bring_to_front()
    else:
        # A browser without windows hides no page.
        page.evaluate(
            "Object.defineProperty(document, 'hidden', { value: true });"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
    # The key has never come up.
    check_that_it_stays(page, teleoperation.robot)


@contextmanager
def pushing_over_a_line(teleoperation: Teleoperation, chromium: Browser) -> Iterator[tuple[Page, Line]]:
    """A page that moves the arm over a connection that can be maltreated; its key stays down."""
    port = int(teleoperation.url.split(":")[2].split("/")[0])
    with Line(port) as line:
        url = teleoperation.url.replace(str(port), str(line.port))
        with opened(chromium, url) as page:
            take(page)
            push_until_moved(page, teleoperation.robot)
            yield page, line


def test_control_is_not_offered_before_there_is_a_link(
    teleoperation: Teleoperation, chromium: Browser
) -> None:
    page = chromium.new_page()
    page.route_web_socket("**/link", lambda _: None)
    page.goto(teleoperation.url)
    assert page.locator("#control.free").count() == 0
    assert page.is_disabled("#control")
    page.close()


def test_a_connection_that_is_cut_holds_the_arm(teleoperation: Teleoperation, chromium: Browser) -> None:
    with pushing_over_a_line(teleoperation, chromium) as (page, line):
        line.cut()
        check_that_it_stays(page, teleoperation.robot)
        # It has come back, and controls no more; the key has never come up.
        page.wait_for_selector("#control.free")
        check_that_it_stays(page, teleoperation.robot)
        page.keyboard.up("u")
        take(page)
        push_until_moved(page, teleoperation.robot)


@pytest.mark.full
def test_what_was_pressed_while_the_line_was_stuck_moves_nothing(
    teleoperation: Teleoperation, chromium: Browser
) -> None:
    with pushing_over_a_line(teleoperation, chromium) as (page, line):
        line.stick()
        check_that_it_stays(page, teleoperation.robot)
        assert page.inner_text("#notice") == "the connection was silent: press again"
        assert "bad" in str(page.get_attribute("#trip", "class"))
        page.keyboard.up("u")
        page.keyboard.down("o")
        page.keyboard.press("h")
        line.free()
        page.keyboard.up("o")
        check_that_it_stays(page, teleoperation.robot)


def test_two_thumbs_on_a_phone_move_at_once(teleoperation: Teleoperation, chromium: Browser) -> None:
    robot = teleoperation.robot
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    with opened(chromium, teleoperation.url, **phone) as page:
        page.tap("#control.free")
        page.wait_for_selector("body.mine")
        session = page.context.new_cdp_session(page)
        boxes = [page.locator(pad).bounding_box() for pad in ("#left", "#right")]
        centers = [(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes if box]

        def touch(kind: str, *up: float) -> None:
            at = [(*center, 40 * part) for center, part in zip(centers, up, strict=True)] if up else []
            points = [{"x": x, "y": y - part, "id": n} for n, (x, y, part) in enumerate(at)]
            session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

        start = tool(robot)
        deadline = time.monotonic() + PATIENCE
        while not (tool(robot)[0] - start[0] < -0.01 and tool(robot)[2] - start[2] > 0.01):
            assert time.monotonic() < deadline
            touch("touchStart", 0.0, 0.0)
            touch("touchMove", -1.0, 1.0)
            page.wait_for_timeout(1000)
            touch("touchEnd")
            page.wait_for_timeout(200)
        check_that_it_stays(page, robot)
        # All that matters is on the screen, and nothing has to be scrolled.
        for name in ("#mode", "#stop", "#control", "#left", "#right", "#grasp", "[data-mark=success]"):
            box = page.locator(name).bounding_box()
            assert box
            assert min(box["x"], box["y"]) >= 0
            assert box["x"] + box["width"] <= 390
            assert box["y"] + box["height"] <= 844


@pytest.mark.full
def test_a_gamepad_moves_while_its_trigger_is_pulled(teleoperation: Teleoperation, page: Page) -> None:
    robot = teleoperation.robot
    pad = (
        "{ connected: true, mapping: 'standard', axes: [0, 0, 0, -1], buttons: Array(17).fill({ value: 0 }) }"
    )
    page.evaluate(f"window.pad = {pad}; navigator.getGamepads = () => [window.pad]")
    check_that_it_stays(page, robot)
    start = tool(robot)

    def moved() -> bool:
        page.evaluate("pad.buttons[7] = { value: 0 }")
        page.wait_for_timeout(150)
        page.evaluate("pad.buttons[7] = { value: 1 }")
        page.wait_for_timeout(1000)
        return tool(robot)[2] - start[2] > 0.01

    until(page, moved)
    page.evaluate("pad.buttons[7] = { value: 0 }")
    check_that_it_stays(page, robot)


@pytest.mark.full
def test_a_phone_moves_by_its_tilt_while_the_button_is_held(
    teleoperation: Teleoperation, chromium: Browser
) -> None:
    robot = teleoperation.robot
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    with opened(chromium, teleoperation.url, **phone) as page:
        take(page)

        def lean(beta: int) -> None:
            how = f"{{ beta: {beta}, gamma: 0 }}"
            page.evaluate(f"dispatchEvent(new DeviceOrientationEvent('deviceorientation', {how}))")

        start = tool(robot)
        lean(60)
        check_that_it_stays(page, robot)

        def moved() -> bool:
            page.mouse.up()
            page.wait_for_timeout(150)
            page.locator("#tilt").hover()
            page.mouse.down()
            lean(40)
            lean(70)
            page.wait_for_timeout(1000)
            return tool(robot)[0] - start[0] < -0.01

        until(page, moved)
        page.mouse.up()
        check_that_it_stays(page, robot)


@pytest.mark.full
def test_who_watches_moves_nothing_can_stop_and_can_take_over(
    teleoperation: Teleoperation, chromium: Browser, page: Page
) -> None:
    robot = teleoperation.robot
    with opened(chromium, teleoperation.url) as watcher:
        push_until_moved(page, robot)
        assert watcher.is_disabled("[data-mark=disarm]")
        watcher.keyboard.press("x")
        until(watcher, lambda: watcher.inner_text("#notice") == "disarm: take control first")
        watcher.click("#stop")
        for one in (page, watcher):
            one.wait_for_selector("#mode[data-mode=fault]")
        assert robot.sample().mode is Mode.FAULT
        watcher.click("#control")
        watcher.click("#control")
        watcher.wait_for_selector("body.mine")
        until(page, lambda: page.locator("body.mine").count() == 0)
        watcher.click("[data-mark=arm]")
        eventually(lambda: robot.sample().mode is Mode.ARMED, "it is acknowledged and armed")
        # The first one's key has never come up.
        check_that_it_stays(page, robot)
        push_until_moved(watcher, robot)
        for stop_by_keys in (
            lambda: page.locator("#stop").press("Enter"),
            lambda: page.keyboard.press("Control+Space"),
        ):
            stop_by_keys()
            watcher.wait_for_selector("#mode[data-mode=fault]")
            watcher.click("[data-mark=arm]")
            eventually(lambda: robot.sample().mode is Mode.ARMED, "it is acknowledged and armed")


def test_without_the_token_there_is_a_page_and_nothing_on_it(
    teleoperation: Teleoperation, chromium: Browser
) -> None:
    context = chromium.new_context()
    page = context.new_page()
    page.goto(teleoperation.url.partition("#")[0] + "#wrong")
    page.wait_for_selector("#alarm:visible")
    until(page, lambda: "wrong token" in page.inner_text("#alarm"))
    assert page.locator("canvas").count() == 0
    assert page.inner_text("#robot") == ""
    context.close()


def test_the_program_ends_well(teleoperation: Teleoperation) -> None:
    """The last test of this file."""
    teleoperation.process.send(signal.SIGINT)
    assert teleoperation.process.wait() == 130
    assert "the arm is at rest and held" in teleoperation.process.output
    assert "Traceback" not in teleoperation.process.output


def test_a_network_needs_a_certificate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["teleop", "task=lift", "device=web", "device.host=0.0.0.0"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "device.host=0.0.0.0 can be reached by other machines" in said
    assert "device.certificate=self" in said
