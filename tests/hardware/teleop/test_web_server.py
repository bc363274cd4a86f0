"""The page's server with a real arm's server behind it, and browsers that are as bad as any can be."""

import http.client
import json
import math
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.clock import MS, MonotonicClock
from robot_rl.hardware.core import modes
from robot_rl.hardware.protocol.messages import Mode
from robot_rl.hardware.teleop.commander import Commander
from robot_rl.hardware.teleop.device import STALE_DISENGAGE_MS, DeviceError
from robot_rl.hardware.teleop.motion import Speed
from robot_rl.hardware.teleop.operator_display import OperatorDisplay, ProgramStatus
from robot_rl.hardware.teleop.teleoperator import Teleoperator
from robot_rl.hardware.teleop.web import server as web_server
from robot_rl.hardware.teleop.web.access import self_signed_certificate
from robot_rl.hardware.teleop.web.server import CLOSE_FULL, MAX_BROWSERS
from robot_rl.hardware.teleop.web.settings import WebSettings
from robot_rl.hardware.teleop.web.web_device import WebDevice
from tests.hardware.processes import PATIENCE, Server, await_event, eventually, serving
from tests.hardware.teleop.line import Line
from tests.hardware.test_camera_events import serving as serving_with_cameras

NEAR = 0.005
"""m"""
MIDDLE = 0.45
"""x of the tool point, m, around which the arm is moved."""


@pytest.fixture(scope="module", autouse=True)
def unhurried() -> Iterator[None]:
    """A browser that does not answer for a while, as tests do that look at the arm, is not given up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(web_server, "_PING_INTERVAL", PATIENCE)
        patch.setattr(web_server, "_HELLO_TIMEOUT", PATIENCE)
        yield


@pytest.fixture(scope="module")
def page(server: Server) -> Iterator[WebDevice]:
    with WebDevice(WebSettings(port=0), OperatorDisplay(server.address)) as page:
        yield page


@pytest.fixture
def robot(server: Server) -> Iterator[RobotClient]:
    """Armed, at rest and without a fault."""
    with server.client("test", "operator") as robot:
        if robot.sample().mode is Mode.FAULT:
            robot.acknowledge("the last test is over")
        if robot.sample().mode not in modes.ENABLED:
            robot.arm()
        eventually(lambda: at_rest(robot), "the arm is at rest")
        yield robot


@pytest.fixture
def hand(server: Server, page: WebDevice, robot: RobotClient) -> Iterator[None]:
    """What `robot-rl teleop` does with a device."""
    ended = threading.Event()

    def run() -> None:
        clock = MonotonicClock()
        with server.client("hand", "operator") as client:
            teleoperator = Teleoperator(client.spec, Speed())
            commander = Commander(client, teleoperator)
            while not ended.wait(0.02):
                sample = page.read()
                state = client.state(10.0)
                commander.follow(teleoperator.update(sample, state, clock.now()), state)
            commander.release()

    thread = threading.Thread(target=run)
    thread.start()
    yield
    ended.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()


class Browser:
    """What the page's script does, step by step; `closing` is at once and without a goodbye."""

    def __init__(self, url: str, token: str | None = None, port: int | None = None) -> None:
        base, _, own = url.partition("#")
        origin = base.rstrip("/")
        if port is not None:
            origin = f"http://127.0.0.1:{port}"
        self.socket: ClientConnection = connect(
            origin.replace("http", "ws", 1) + "/link",
            origin=origin,
            open_timeout=PATIENCE,  # type: ignore[arg-type]
        )
        self.count = 0
        self.view: dict[str, Any] = {}
        self.images: list[bytes] = []
        self.notices: list[str] = []
        self.welcome: dict[str, Any] = {}
        self.say("hello", token=own if token is None else token)

    def say(self, t: str, **fields: Any) -> None:
        self.socket.send(json.dumps({"t": t, **fields}))

    def hear(self, timeout: float = PATIENCE) -> None:
        """One message."""
        message = self.socket.recv(timeout)
        if isinstance(message, bytes):
            self.images.append(message)
            return
        known = json.loads(message)
        if known["t"] == "ping":
            self.say("pong", id=known["id"], at=now())
        elif known["t"] == "view":
            self.view = known
        elif known["t"] == "welcome":
            self.welcome = known
        else:
            self.notices.append(known["text"])

    def until(self, true: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE
        while not (found := true()):
            assert time.monotonic() < deadline
            self.hear()
        return found

    def move(self, on: bool, ahead: float = 1.0) -> None:
        self.count += 1
        self.say("move", n=self.count, at=now(), on=on, motion=[ahead, 0.0, 0.0, 0.0, 0.0, 0.0])

    def take(self, **how: bool) -> None:
        """And let go, with a clock that is known."""
        self.say("take", **how)
        self.until(lambda: self.view.get("control") == "you" and self.view["round_trip_ms"] is not None)
        self.move(False)

    def hold(self, seconds: float, ahead: float = 1.0, *, on: bool = True) -> None:
        """Move forward, or let go."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.move(on, ahead)
            try:
                self.hear(0.03)
            except TimeoutError:
                continue

    def hold_until_moved(self, robot: RobotClient, start: float) -> None:
        """Away from `start`, and not out of reach."""
        begun = pressed = time.monotonic()
        while abs(x(robot) - start) < 4 * NEAR:
            now = time.monotonic()
            assert now < begun + PATIENCE, "the arm does not move"
            if now > pressed + 1.0:
                # A late press does not count, and the connection may be late: press again, as a person would.
                self.hold(0.2, on=False)
                pressed = time.monotonic()
            self.hold(0.1, math.copysign(1.0, MIDDLE - start))

    def holds_on(self, robot: RobotClient) -> bool:
        """Whether the arm is commanded, after a moment of moving back and forth."""
        self.hold(0.1, on=False)
        self.hold(0.1, math.copysign(1.0, MIDDLE - x(robot)))
        return robot.sample().lease_holder == "hand"

    def code(self) -> int:
        """With which the server has closed."""
        with pytest.raises(ConnectionClosed) as closed:
            self.until(lambda: False)
        assert closed.value.rcvd is not None
        return closed.value.rcvd.code

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.socket.close()
        self.socket.close()


def now() -> float:
    """A clock that began an hour before this machine's, ms."""
    return time.monotonic() * 1e3 + 3_600_000


def port_of(page: WebDevice) -> int:
    return int(page.url.split(":")[2].split("/")[0])


def x(robot: RobotClient) -> float:
    return robot.sample().position[0]


def at_rest(robot: RobotClient) -> bool:
    return max(map(abs, robot.sample().dq)) < 0.005


@pytest.mark.usefixtures("hand")
def test_holding_moves_the_arm_and_letting_go_holds_it(page: WebDevice, robot: RobotClient) -> None:
    with Browser(page.url) as browser:
        start = x(robot)
        browser.take()
        browser.hold_until_moved(robot, start)
        eventually(lambda: browser.holds_on(robot), "the hand has the lease")
        browser.move(False)
        eventually(lambda: robot.sample().mode is Mode.ARMED and at_rest(robot), "the arm is held")
        there = x(robot)
        time.sleep(0.3)
        assert abs(x(robot) - there) < NEAR
        browser.until(lambda: browser.view["arm"]["mode"] == "armed")
        browser.until(lambda: abs(browser.view["arm"]["position"][0] - there) < NEAR)


@pytest.mark.usefixtures("hand")
def test_a_browser_that_is_gone_holds_the_arm_and_comes_back_without_control(
    page: WebDevice, robot: RobotClient
) -> None:
    start = x(robot)
    with Line(port_of(page)) as line:
        with Browser(page.url, port=line.port) as browser:
            browser.take()
            browser.hold_until_moved(robot, start)
            line.cut()
            eventually(lambda: robot.sample().mode is Mode.ARMED and at_rest(robot), "the arm is held")
        there = x(robot)
        with Browser(page.url, port=line.port) as browser:
            # Its hands have never let go.
            browser.until(lambda: browser.view and browser.view["control"] == "nobody")
            browser.hold(0.3)
            assert browser.view["control"] == "nobody"
    assert robot.sample().mode is Mode.ARMED
    assert abs(x(robot) - there) < NEAR


@pytest.mark.usefixtures("hand")
def test_what_a_line_that_was_stuck_brings_moves_nothing(page: WebDevice, robot: RobotClient) -> None:
    start = x(robot)
    with (
        Line(port_of(page)) as line,
        Browser(page.url, port=line.port) as browser,
    ):
        browser.take()
        browser.hold_until_moved(robot, start)
        line.stick()
        for _ in range(30):
            browser.move(True)
            time.sleep(0.03)
        eventually(lambda: robot.sample().mode is Mode.ARMED and at_rest(robot), "the arm is held")
        there, newest = x(robot), page.read()
        time.sleep(2 * STALE_DISENGAGE_MS * 1e-3)
        freed = time.monotonic_ns()
        line.free()
        browser.until(lambda: browser.view["seen"] == browser.count)
        burst = page.read()
        assert burst is not None
        assert newest is not None
        assert burst.enable
        assert newest.t < burst.t < freed - STALE_DISENGAGE_MS * MS
        time.sleep(0.3)
        assert abs(x(robot) - there) < NEAR
        # Neither does what comes in time, until it has been let go.
        browser.hold(0.3)
        assert abs(x(robot) - there) < NEAR
        browser.move(False)
        browser.hold_until_moved(robot, there)


@pytest.mark.usefixtures("hand")
def test_one_browser_controls_and_another_takes_over_only_if_it_says_so(
    page: WebDevice, robot: RobotClient
) -> None:
    with Browser(page.url) as one, Browser(page.url) as two:
        one.take()
        two.say("take")
        two.until(lambda: two.notices)
        assert "controls: take over from it, or wait" in two.notices[0]
        two.until(lambda: two.view["control"] == "other")
        assert two.view["controller"] == one.welcome["you"]
        start = x(robot)
        two.hold(0.3)
        assert abs(x(robot) - start) < NEAR
        two.take(over=True)
        one.until(lambda: one.notices)
        assert one.notices == [f"{two.welcome['you']} has taken over"]
        one.hold(0.3)
        assert abs(x(robot) - start) < NEAR
        two.hold_until_moved(robot, start)
        two.say("leave")
        two.until(lambda: two.view["control"] == "nobody")
        eventually(lambda: robot.sample().mode is Mode.ARMED and at_rest(robot), "the arm is held")


def test_whoever_watches_can_stop_and_ask_for_nothing_else(page: WebDevice, robot: RobotClient) -> None:
    with Browser(page.url) as browser, Browser(page.url) as other:
        browser.until(lambda: browser.view)
        for mark in ("arm", "disarm", "home", "begin"):
            browser.say("press", at=now(), mark=mark)
        browser.until(lambda: len(browser.notices) == 4)
        assert all(notice.endswith("take control first") for notice in browser.notices)
        browser.say("stop")
        event = await_event(robot, "on the web page")
        assert event.what == "stop"
        assert event.who == "web page"
        assert robot.sample().mode is Mode.FAULT
        for one in (browser, other):
            one.until(lambda one=one: any(notice.endswith(": stopped") for notice in one.notices))
            one.until(lambda one=one: one.view["arm"]["mode"] == "fault")


def test_marks_go_to_whoever_reads_the_device(page: WebDevice) -> None:
    with Browser(page.url) as browser:
        browser.take()
        browser.say("press", at=now() - 5000, mark="begin")
        browser.until(lambda: browser.notices)
        assert re.match(r"begin was pressed \d+\.\d s ago", browser.notices[0])

        def given() -> tuple[str, ...]:
            # Where it comes too late, it is pressed again.
            browser.say("press", at=now(), mark="success")
            sample = page.read()
            return sample.marks if sample else ()

        assert set(eventually(given, "a mark")) == {"success"}


def test_the_page_shows_what_the_program_does(server: Server) -> None:
    display = OperatorDisplay(server.address)
    with WebDevice(WebSettings(port=0), display) as page, Browser(page.url) as browser:
        display.program = ProgramStatus(
            task="recording", episode=3, running=True, outcomes=("success", "failure")
        )
        browser.until(lambda: browser.view and browser.view["program"]["episode"] == 3)
        assert browser.view["program"]["outcomes"] == ["success", "failure"]
        assert browser.view["robot"] == "sim_panda"
        for n in range(20):
            display.say(f"line {n}")
            browser.until(lambda n=n: len(browser.notices) > n)
        assert browser.notices == [f"line {n}" for n in range(20)]
        with Browser(page.url) as later:
            later.until(lambda: later.view)
            display.say("and one more")
            later.until(lambda: later.notices)
            assert later.notices == ["and one more"]


@pytest.mark.full
def test_the_page_shows_and_stops_a_robot_whose_server_began_anew(tmp_path: Path) -> None:
    with serving(tmp_path) as first, WebDevice(WebSettings(port=0), OperatorDisplay(first.address)) as page:
        with Browser(page.url) as browser:
            browser.until(lambda: browser.view and browser.view["arm"]["mode"] == "idle")
            first.process.kill()
            browser.until(lambda: browser.view["trouble"])
            browser.say("stop")
            browser.until(lambda: browser.notices)
            assert "STOP was not confirmed, use the button on the arm" in browser.notices[0]
        with serving(tmp_path) as second, second.client("test", "operator") as robot:
            robot.arm()
            with Browser(page.url) as browser:
                browser.until(lambda: browser.view and browser.view["arm"]["mode"] == "armed")
                assert not browser.view["trouble"]
                browser.say("stop")
                browser.until(lambda: browser.view["arm"]["mode"] == "fault")
                browser.until(lambda: any(notice.endswith(": stopped") for notice in browser.notices))


def test_a_fault_of_the_program_reaches_whoever_reads_the_device(server: Server) -> None:
    display = OperatorDisplay(server.address)
    with WebDevice(WebSettings(port=0), display) as page, Browser(page.url) as browser:
        browser.until(lambda: browser.view)
        display.program = object()  # type: ignore[assignment]

        def failed() -> bool:
            try:
                page.read()
            except ExceptionGroup as group:
                return group.subgroup(TypeError) is not None
            return False

        eventually(failed, "the fault")


# ---- who may come in -----------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "wrong", "x" * 256])
def test_a_wrong_token_is_shown_the_door(page: WebDevice, token: str) -> None:
    with Browser(page.url, token=token) as browser:
        assert browser.code() == 4401
        assert not browser.view


@pytest.mark.parametrize("first", ["", "{}", b"\xff", '{"x":' + "[" * 1900 + "]" * 1900 + ',"t":"take"}'])
def test_who_begins_with_rubbish_is_shown_the_door_and_harms_nobody(
    page: WebDevice, first: str | bytes
) -> None:
    link = page.url.partition("#")[0].rstrip("/")
    with connect(
        link.replace("http", "ws", 1) + "/link",
        origin=link,  # type: ignore[arg-type]
        open_timeout=PATIENCE,
    ) as socket:
        socket.send(first)
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(PATIENCE)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
    page.read()
    with Browser(page.url) as browser:
        browser.until(lambda: browser.view)


@pytest.mark.parametrize(
    "text",
    [
        "",
        b"\xff",
        "[]",
        '{"t":"move"}',
        '{"t":"move","n":1,"at":1,"on":true,"motion":[2,0,0,0,0,0]}',
        '{"t":"move","n":1,"at":1,"on":true,"motion":[0,0,0]}',
        '{"t":"move","n":-1,"at":1,"on":true,"motion":[0,0,0,0,0,0]}',
        '{"t":"press","at":1,"mark":"quit"}',
        '{"t":"hello","token":"again"}',
        '{"t":"take","more":1}',
    ],
)
def test_what_the_page_never_says_ends_the_connection(page: WebDevice, text: str | bytes) -> None:
    with Browser(page.url) as browser:
        browser.until(lambda: browser.view)
        browser.socket.send(text)
        assert browser.code() == 1008


def test_a_long_message_ends_the_connection(page: WebDevice) -> None:
    with Browser(page.url) as browser:
        browser.until(lambda: browser.view)
        browser.say("take", more="x" * 5000)
        assert browser.code() == 1009


def test_no_other_page_may_connect(page: WebDevice) -> None:
    link = page.url.partition("#")[0].replace("http", "ws", 1) + "link"
    for origin in ("http://evil.example", None, link.replace("ws", "https", 1).removesuffix("/link")):
        with pytest.raises(InvalidStatus) as refused:
            connect(link, origin=origin, open_timeout=PATIENCE)  # type: ignore[arg-type]
        assert refused.value.response.status_code == 403


def answered(port: int, path: str, *headers: tuple[str, str]) -> int:
    """The status of an answer to exactly these headers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.putrequest("GET", path, skip_host=True)
    for name, value in headers:
        connection.putheader(name, value)
    connection.endheaders()
    status = connection.getresponse().status
    connection.close()
    return status


def test_requests_that_name_another_host_are_refused(page: WebDevice) -> None:
    port = port_of(page)
    handshake = (
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="),
        ("Sec-WebSocket-Version", "13"),
    )
    for name in ("127.0.0.1", "localhost", "[::1]", "LocalHost"):
        host = ("Host", f"{name}:{port}")
        assert answered(port, "/", host) == 200
        assert answered(port, "/link", host, ("Origin", f"http://{host[1]}"), *handshake) == 101
        assert answered(port, "/link", host, ("Origin", "http://evil.example"), *handshake) == 403
    for name in (f"evil.example:{port}", "evil.example", "127.0.0.1.evil.example", "192.0.2.1", ""):
        host = ("Host", name)
        assert answered(port, "/", host) == 421
        # What a page does whose name was made to mean this machine: its origin is its own.
        assert answered(port, "/link", host, ("Origin", f"http://{name}"), *handshake) == 421
    assert answered(port, "/") == 421
    assert answered(port, "/", ("Host", f"localhost:{port}"), ("Host", "evil.example")) == 421
    origins = (("Origin", f"http://localhost:{port}"), ("Origin", "http://evil.example"))
    assert answered(port, "/link", ("Host", f"localhost:{port}"), *origins, *handshake) == 403
    page.read()


def test_there_is_one_page_and_it_may_load_nothing_from_elsewhere(page: WebDevice) -> None:
    host = page.url.split("/")[2]
    answers = {}
    for path in ("/", "/?x", "/link/../secret", "/index.html"):
        connection = http.client.HTTPConnection(host, timeout=PATIENCE)
        connection.request("GET", path)
        answers[path] = response = connection.getresponse()
        body = response.read()
        connection.close()
        assert (response.status == 200) == (path in ("/", "/?x"))
        assert page.url.partition("#")[2].encode() not in body
    policy = answers["/"].headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "*" not in policy


def test_a_page_with_a_certificate_is_encrypted(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    settings = WebSettings(host="127.0.0.1", port=0, certificate="self")
    with WebDevice(settings, OperatorDisplay(server.address)) as page:
        assert page.url.startswith("https://")
        trust = ssl.create_default_context(cafile=str(self_signed_certificate(["localhost"])[0]))
        port = port_of(page)
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE, context=trust)
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
        connection.close()
        plain = socket.create_connection(("127.0.0.1", port))
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert b"html" not in plain.recv(4096)
        plain.close()


def test_a_port_that_is_taken_and_a_robot_that_is_not_there_are_named(
    server: Server, page: WebDevice, tmp_path: Path
) -> None:
    port = port_of(page)
    with pytest.raises(
        DeviceError, match=rf"127\.0\.0\.1:{port}: address already in use; choose another device.host or"
    ):
        WebDevice(WebSettings(port=port), OperatorDisplay(server.address)).__enter__()
    (tmp_path / "r").mkdir(mode=0o700)
    with pytest.raises(DeviceError, match="check that the server runs"):
        WebDevice(WebSettings(port=0), OperatorDisplay(f"ipc://{tmp_path / 'r'}")).__enter__()


def test_there_is_room_for_so_many_browsers_and_no_more(page: WebDevice) -> None:
    with ExitStack() as opened:
        browsers = [opened.enter_context(Browser(page.url)) for _ in range(MAX_BROWSERS)]
        for browser in browsers:
            browser.until(lambda browser=browser: browser.view)
        with Browser(page.url) as late:
            assert late.code() == CLOSE_FULL
        browsers[0].socket.close()

        def room() -> bool:
            with Browser(page.url) as late:
                try:
                    return bool(late.until(lambda: late.view))
                except ConnectionClosed:
                    return False

        eventually(room, "one has left, and there is room")


# ---- images --------------------------------------------------------------------------------------------


@contextmanager
def seen_by_cameras(folder: Path) -> Iterator[WebDevice]:
    with (
        serving_with_cameras(folder, cameras={"left": {}, "right": {}}) as small,
        WebDevice(WebSettings(port=0), OperatorDisplay(str(small.address))) as page,
    ):
        yield page


def test_the_next_image_comes_when_the_last_was_drawn_and_is_the_newest(tmp_path: Path) -> None:
    with seen_by_cameras(tmp_path) as page, Browser(page.url) as browser, Browser(page.url) as quick:
        browser.until(lambda: browser.images)
        assert browser.welcome["cameras"] == ["left", "right"]
        quick.until(lambda: quick.images)
        # Five of each, so that one of each is not among the last four.
        while min(sum(header(image)[0] == camera for image in quick.images) for camera in (0, 1)) < 5:
            have = len(quick.images)
            quick.say("shown")
            quick.until(lambda have=have: len(quick.images) > have)
        # The other has shown nothing meanwhile, and was sent no more.
        browser.say("shown")
        browser.until(lambda: len(browser.images) == 2)
        numbers = [header(image) for image in quick.images]
        first, second = map(header, browser.images)
        assert {camera for camera, *_ in numbers} == {0, 1}
        assert first[0] != second[0]
        assert second[1] >= max(number for camera, number, _ in numbers[:-4] if camera == second[0])
        assert browser.images[0][17:19] == b"\xff\xd8"
        assert all(0 <= age < 60_000 for *_, age in numbers)


def header(image: bytes) -> tuple[int, int, float]:
    return struct.unpack(">BQd", image[:17])
