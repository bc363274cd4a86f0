"""A keyboard that is a terminal: presses come, releases never do."""

import os
import pty
import termios
import time
from collections.abc import Iterator

import pytest

from robot_rl.hardware.clock import MS
from robot_rl.hardware.teleop import terminal_keys as keys
from robot_rl.hardware.teleop.device import LAPSE_S, DeviceError, Sample
from robot_rl.hardware.teleop.keyboard import PRESS_MS, KeyboardDecoder, KeyboardSettings, keyboard
from robot_rl.hardware.teleop.reader import FileDevice
from tests.hardware.processes import eventually

REST = (0.0,) * 6
ENGAGED = b"c"


def at(decoder: KeyboardDecoder, t_ms: float) -> Sample:
    return decoder.sample(round(t_ms * MS))


def press(decoder: KeyboardDecoder, data: bytes, t_ms: float) -> None:
    decoder.feed(data, round(t_ms * MS))


def test_a_press_moves_for_a_moment_and_repeats_keep_it_moving() -> None:
    decoder = KeyboardDecoder()
    press(decoder, b"i", 1000)
    assert at(decoder, 1000 + PRESS_MS - 1).motion == (1.0, 0, 0, 0, 0, 0)
    assert at(decoder, 1000 + PRESS_MS).motion == REST
    for t in range(2000, 4000, 33):
        press(decoder, b"i", t)
        assert at(decoder, t + 33).motion == (1.0, 0, 0, 0, 0, 0)
    assert at(decoder, t + PRESS_MS).motion == REST


@pytest.mark.parametrize(
    ("key", "axis", "sign"),
    [("i", 0, 1), ("k", 0, -1), ("j", 1, 1), ("l", 1, -1), ("u", 2, 1), ("o", 2, -1)],
)
def test_six_keys_move_and_with_shift_they_turn(key: str, axis: int, sign: int) -> None:
    for letter, index in ((key, axis), (key.upper(), axis + 3)):
        decoder = KeyboardDecoder()
        press(decoder, letter.encode(), 0)
        assert at(decoder, 1).motion == tuple(float(sign) if i == index else 0.0 for i in range(6))


def test_the_clutch_is_a_key_that_lapses_without_any() -> None:
    decoder = KeyboardDecoder()
    assert not at(decoder, 0).enable
    press(decoder, b"c", 0)
    assert at(decoder, LAPSE_S * 1000).enable
    press(decoder, b"i", LAPSE_S * 1000)
    assert at(decoder, 2 * LAPSE_S * 1000).enable
    assert not at(decoder, 2 * LAPSE_S * 1000 + 1).enable
    # A key does not engage it again, but its own.
    press(decoder, b"i", 2 * LAPSE_S * 1000 + 2)
    assert not at(decoder, 2 * LAPSE_S * 1000 + 3).enable
    press(decoder, b"c", 30_000)
    assert at(decoder, 30_001).enable
    press(decoder, b"c", 30_002)
    assert not at(decoder, 30_003).enable


def test_a_mark_is_given_once() -> None:
    decoder = KeyboardDecoder()
    press(decoder, b"bs q", 0)
    assert at(decoder, 1).marks == ("begin", "success", "stop", "quit")
    assert at(decoder, 2).marks == ()


def test_keys_of_several_bytes_mean_nothing() -> None:
    """Left is ESC [ D and F1 ESC O P, in which D and O are keys too."""
    decoder = KeyboardDecoder()
    for data in (b"\x1b[D\x1bOP", b"\x1b[1;2D", b"\x1b", b"[3~", b"\x1b[", b"D"):
        press(decoder, data, 0)
        sample = at(decoder, 1)
        assert (sample.motion, sample.marks, sample.gripper) == (REST, (), None)
    press(decoder, b"\x1bs", 0)
    assert at(decoder, 1).marks == ("success",)


def test_a_space_after_an_unfinished_sequence_stops() -> None:
    decoder = KeyboardDecoder()
    press(decoder, b"\x1bO", 0)
    press(decoder, b" ", 1)
    assert at(decoder, 2).marks == ("stop",)
    press(decoder, b"\x1b[1 q", 3)
    assert at(decoder, 4).marks == ("stop", "quit")


def test_what_was_typed_while_the_program_was_stopped_does_nothing_but_stop() -> None:
    decoder = KeyboardDecoder()
    press(decoder, b"ci", 0)
    decoder.forget(b"ibgs ", 900 * MS)
    sample = at(decoder, 901)
    assert sample.motion == REST
    assert not sample.enable
    assert sample.gripper is None
    assert sample.marks == ("stop",)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The other end of standard input."""
    ours, its = pty.openpty()
    stdin = os.fdopen(its, "r")
    monkeypatch.setattr(keys.sys, "stdin", stdin)
    yield ours
    stdin.close()
    if ours_is_open(ours):
        os.close(ours)


def ours_is_open(file: int) -> bool:
    try:
        os.fstat(file)
    except OSError:
        return False
    return True


def test_a_terminal_is_read_without_enter_and_is_as_before_afterwards(terminal: int) -> None:
    before = termios.tcgetattr(keys.sys.stdin.fileno())
    unhurried = keyboard(KeyboardSettings())
    # On a busy machine no key that a test presses is forgotten.
    unhurried._late = 10**12
    with unhurried as device:
        os.write(terminal, b"cr")
        sample = eventually(lambda: (s := device.read()) and s.enable and s, "the clutch")
        assert sample.gripper == 1.0
        assert abs(time.monotonic_ns() - sample.t) < 60_000 * MS
    assert termios.tcgetattr(keys.sys.stdin.fileno()) == before


def test_a_terminal_that_ends_is_named(terminal: int) -> None:
    with keyboard(KeyboardSettings()) as device:
        eventually(device.read, "it is there")
        os.close(terminal)
        eventually(lambda: gone(device), "the terminal has ended")


def gone(device: FileDevice) -> bool:
    try:
        device.read()
    except DeviceError as error:
        return "the terminal has ended" in str(error)
    return False


def test_without_a_terminal_there_is_no_keyboard(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull) as nothing:
        monkeypatch.setattr(keys.sys, "stdin", nothing)
        with pytest.raises(DeviceError, match="standard input is not a terminal"):
            keyboard(KeyboardSettings()).__enter__()


def test_the_key_that_grasped_counts_again_after_the_clutch() -> None:
    decoder = KeyboardDecoder()
    for _ in range(2):
        assert at(decoder, 0).gripper is None
        press(decoder, b"cg", 0)
        assert at(decoder, 1).gripper == 0.0
        press(decoder, b"c", 1)
        assert not at(decoder, 2).enable
