"""`robot-rl teleop` as a person uses it, with a simulated arm behind its server."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from robot_rl.cli.main import main
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.protocol.codec import decode_server
from robot_rl.hardware.protocol.messages import Commanded, Mode, State
from robot_rl.hardware.recording.raw import RawDataset
from robot_rl.hardware.recording.records import Received
from robot_rl.hardware.spec import REST
from tests.hardware.processes import PATIENCE, ROOT, Process, Server, await_event, eventually
from tests.hardware.teleop.dynamixel_bus import Bus
from tests.hardware.teleop.feeding import Feed, buttons, cap
from tests.robot_rl.terminal import Terminal

SLOWLY = "speed=0.1"


@pytest.fixture
def watcher(server: Server) -> Iterator[RobotClient]:
    with server.client("watcher", "operator") as watcher:
        yield watcher
        if watcher.sample().mode is Mode.FAULT:
            watcher.acknowledge("the next test begins")
        if watcher.sample().mode is not Mode.IDLE:
            watcher.disarm()


@contextmanager
def teleop(server: Server, *arguments: str) -> Iterator[Terminal]:
    terminal = Terminal("teleop", f"address={server.address}", SLOWLY, *arguments)
    try:
        terminal.await_text("ecorded")
        yield terminal
    finally:
        terminal.close()


def engage(terminal: Terminal) -> None:
    """Arm, and press the clutch."""
    terminal.press_for("a", "armed; clutch released")
    terminal.press_for("c", "human; clutch engaged")


def hold(terminal: Terminal, key: str, seconds: float = 1.0) -> None:
    """As a terminal repeats a key that is held down."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        terminal.press(key)
        time.sleep(0.03)


def stay_engaged(terminal: Terminal, watcher: RobotClient) -> State:
    """Press the clutch where a busy machine has opened it; returns the arm's state."""
    state = watcher.sample()
    if state.mode is not Mode.HUMAN:
        terminal.press("c")
        end = time.monotonic() + 1.0
        while state.mode is not Mode.HUMAN and time.monotonic() < end:
            state = watcher.sample()
            time.sleep(0.02)
    return state


def hold_until(terminal: Terminal, watcher: RobotClient, key: str, true: Callable[[State], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true(stay_engaged(terminal, watcher)):
        assert time.monotonic() < deadline
        hold(terminal, key, 0.2)


def at_rest(state: State) -> bool:
    return max(map(abs, state.dq)) < REST


def test_keys_move_the_arm_while_they_are_held_and_it_stays_held_at_the_end(
    server: Server, watcher: RobotClient
) -> None:
    with teleop(server) as terminal:
        before = watcher.sample().position
        hold(terminal, "i", 0.3)
        engage(terminal)
        # It sags a little where it is first held.
        assert watcher.sample().position == pytest.approx(before, abs=6e-3)
        hold_until(terminal, watcher, "i", lambda now: now.position[0] > before[0] + 0.02)

        def rests() -> State | None:
            state = stay_engaged(terminal, watcher)
            return state if state.mode is Mode.HUMAN and at_rest(state) else None

        rested: State = eventually(rests, "no key, no motion")
        hold_until(terminal, watcher, "k", lambda now: now.position[0] < rested.position[0] - 0.005)
        assert terminal.quit() == 0
        terminal.await_text("the arm is at rest and held")
    state = watcher.sample()
    assert (state.mode, state.lease_holder) == (Mode.ARMED, "")
    assert at_rest(state)


@pytest.mark.full
def test_ctrl_c_leaves_the_arm_held_and_at_rest(server: Server, watcher: RobotClient) -> None:
    with teleop(server) as terminal:
        engage(terminal)
        hold(terminal, "u")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.wait() == 130
    state = watcher.sample()
    assert (state.mode, state.lease_holder) == (Mode.ARMED, "")
    assert at_rest(state)


@pytest.mark.full
def test_the_space_bar_is_the_e_stop_and_a_acknowledges(server: Server, watcher: RobotClient) -> None:
    with teleop(server) as terminal:
        engage(terminal)
        terminal.press(" ")
        await_event(watcher, "the operator at the keyboard")
        eventually(lambda: watcher.sample().mode is Mode.FAULT, "the fault")
        terminal.await_text("a acknowledges it; clutch released")
        # The clutch alone does nothing now.
        terminal.press_for("c", "the arm has a fault: a acknowledges it and arms again")
        assert watcher.sample().mode is Mode.FAULT
        terminal.press_for("a", "acknowledged: stop:")
        eventually(lambda: watcher.sample().mode is Mode.ARMED, "armed again")


def test_episodes_are_recorded_with_who_moved(server: Server, watcher: RobotClient, tmp_path: Path) -> None:
    out = tmp_path / "x.raw"
    with teleop(server, f"out={out}", "labels.operator=carl") as terminal:
        engage(terminal)
        terminal.press_for("b", "RECORDING")
        before = watcher.sample().position[0]
        # A command moves by 1 cm at most.
        hold_until(terminal, watcher, "i", lambda now: now.position[0] > before + 0.04)
        terminal.press_for("q", "an episode is open: s, f or d ends it")
        terminal.press_for("s", "episode 0: success")
        assert terminal.quit() == 0
        terminal.await_text(f"robot-rl data derive raw={out} out={tmp_path}/x.zarr name=x")
    episode = RawDataset(out).episodes[0]
    assert episode.footer is not None
    assert episode.footer.outcome == "success"
    assert episode.header.labels == {"device": "keyboard", "operator": "carl"}
    received = [message for message in episode.messages() if isinstance(message, Received)]
    messages = [decode_server(message.frame) for message in received]
    commands = [message for message in messages if isinstance(message, Commanded)]
    assert len(commands) > 3
    assert {command.kind for command in commands} == {"human"}
    assert any(command.applied for command in commands)


@pytest.mark.full
def test_somebody_else_with_the_lease_is_named(server: Server, watcher: RobotClient) -> None:
    with teleop(server) as terminal:
        terminal.press_for("a", "armed; clutch released")
        with watcher.lease("script"):
            watcher.command("cartesian_delta", [0.0] * 6)
            for _ in range(10):
                terminal.press("c")
                watcher.command("cartesian_delta", [0.0] * 6)
                if terminal.shows("watcher holds the lease: end that program"):
                    break
                time.sleep(0.2)
        terminal.await_text("watcher holds the lease: end that program, then press the clutch again")


def test_a_device_that_is_stopped_holds_the_arm_and_has_to_be_pressed_anew(
    server: Server, watcher: RobotClient, tmp_path: Path
) -> None:
    path = tmp_path / "hidraw0"
    script = str(ROOT / "tests/hardware/teleop/feeding.py")
    hand = Process([script, str(path)], "ready")
    try:
        with teleop(server, "device=spacemouse", f"device.path={path}") as terminal:
            terminal.press_for("a", "armed; clutch released")
            eventually(lambda: moves(watcher, hand), "it moves")
            terminal.await_text("human; clutch engaged")
            terminal.forget()
            hand.send(signal.SIGSTOP)
            eventually(lambda: watcher.sample().lease_holder == "", "it is held")
            assert watcher.sample().mode is Mode.ARMED
            terminal.await_text("the device was silent: press the clutch again")
            hand.send(signal.SIGCONT)
            terminal.await_text("clutch released")
            held = watcher.sample().position
            time.sleep(0.5)
            assert watcher.sample().position == pytest.approx(held, abs=2e-3)
            terminal.forget()
            eventually(lambda: moves(watcher, hand), "it moves again")
            terminal.await_text("human; clutch engaged")
    finally:
        hand.send(signal.SIGCONT)
        hand.kill()


def moves(watcher: RobotClient, hand: Process) -> bool:
    """Whether the arm does; the clutch is pressed, again where a busy machine kept the device silent."""
    if not watcher.sample().lease_holder:
        hand.tell("press")
        time.sleep(0.5)
    return not at_rest(watcher.sample())


@pytest.mark.full
def test_an_unplugged_device_loses_nothing_of_the_open_episode(
    server: Server, watcher: RobotClient, tmp_path: Path
) -> None:
    out, path = tmp_path / "x.raw", tmp_path / "hidraw0"
    with (
        Feed(path) as feed,
        teleop(server, "device=spacemouse", f"device.path={path}", f"out={out}") as terminal,
    ):
        terminal.press_for("a", "armed; clutch released")
        feed.write(buttons(0))
        feed.write(buttons())
        terminal.await_text("human; clutch engaged")
        terminal.press_for("b", "RECORDING")
        for report in cap((0, 0, -100)):
            feed.write(report)
        feed.unplug()
        terminal.await_text("the SpaceMouse is disconnected: plug it in and start again; the arm is held")
        eventually(lambda: watcher.sample().lease_holder == "", "it is held")
        terminal.forget()
        terminal.await_text("RECORDING")
        terminal.press_for("f", "episode 0: failure")
        assert terminal.quit() == 0
    footer = RawDataset(out).episodes[0].footer
    assert footer is not None
    assert footer.outcome == "failure"


@pytest.mark.full
def test_without_a_terminal_an_unplugged_device_ends_the_program_and_keeps_the_episode(
    server: Server, watcher: RobotClient, tmp_path: Path
) -> None:
    path = tmp_path / "hidraw0"
    watcher.arm()
    with Feed(path) as feed:
        program = Process(
            [
                *("-m", "robot_rl", "teleop", "device=spacemouse", f"device.path={path}"),
                f"address={server.address}",
            ],
            "othing is recorded",
        )
        try:

            def engaged() -> bool:
                # A press before the program's first poll does not count.
                feed.write(buttons(0))
                feed.write(buttons())
                time.sleep(1.0)
                return watcher.sample().mode is Mode.HUMAN

            eventually(engaged, "it is engaged")
            feed.unplug()
            assert program.wait() == 1
        finally:
            program.kill()
    assert "robot-rl: the SpaceMouse is disconnected: plug it in and start again" in program.output
    assert watcher.sample().mode is Mode.ARMED


def turn(bus: Bus, motor: int, angle: float) -> None:
    """By hand, slowly."""
    for part in np.linspace(bus.angles[motor], angle, 50):
        bus.angles[motor] = float(part)
        time.sleep(0.02)


@pytest.mark.full
def test_the_arm_follows_a_leader_that_is_brought_close_and_holds_when_it_is_unplugged(
    server: Server, watcher: RobotClient
) -> None:
    home = watcher.spec.home
    watcher.arm()
    with watcher.lease("script"):
        watcher.home()
    with (
        Bus(dict(enumerate(home, 1))) as bus,
        teleop(server, "device=leader", f"device.path={bus.path}") as terminal,
    ):
        bus.angles[1] = home[0] + 0.4
        terminal.await_text("armed; clutch released")
        terminal.press("c")
        terminal.await_text("the leader is too far from the arm, more than 0.05 rad: joint1 +0.40")
        assert watcher.sample().mode is Mode.ARMED
        turn(bus, 1, home[0] + 0.02)
        terminal.await_text("human; clutch engaged")
        turn(bus, 1, home[0] + 0.3)
        eventually(lambda: watcher.sample().q[0] > home[0] + 0.25, "the arm follows")
        bus.unplug()
        terminal.await_text(
            f"the leader is gone from {bus.path}: plug it in and start again; the arm is held"
        )
        eventually(lambda: watcher.sample().mode is Mode.ARMED, "it is held")
        assert terminal.quit() == 0


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["device=[keyboard,spacemouse]"], "device=[keyboard,spacemouse]: only one device at a time"),
        (["device=keybord"], "did you mean device=keyboard?"),
        (["task=lift", "address=ipc:///tmp/x"], "task=… starts its own server"),
        (["speed=0"], "a speed of 0: it must be more than 0"),
        (["address=ipc:///tmp/there-is-none"], "no connection from ipc:///tmp/there-is-none in time"),
        (["address=nonsense"], "'nonsense' is not a robot's address"),
        (["device=replay"], "device.path is required"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["teleop", *arguments]) == 2
    said = capsys.readouterr().err
    assert answer in said
    assert len(said.splitlines()) == 1


@pytest.mark.full
def test_what_cannot_be_had_is_said_before_anything_moves(server: Server, tmp_path: Path) -> None:
    for arguments, answer in (
        ([], "keys are read from a terminal, but standard input is not a terminal"),
        (["device=spacemouse", f"device.path={tmp_path}/hidraw9"], "is it plugged in?"),
        (["device=replay", f"device.path={tmp_path}/none"], "no such file or directory"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "robot_rl", "teleop", f"address={server.address}", *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 2, done.stderr
        assert answer in done.stderr
