"""What a person says with keys: heard without Enter and without waiting, and only when it is meant."""

import os
import sys
from collections.abc import Iterator

import pytest

from robot_rl.hardware.protocol.messages import Mode, State
from robot_rl.hardware.teleop.terminal_keys import KeyReader
from robot_rl.robot.deploy.resets import ready_on_enter
from robot_rl.robot.deploy.terminal import OperatorVerdict, Stopped, open_terminal_keys, wait_for_enter

STATE = State(src="", seq=1, tm=0, t_sample=0, q=(), dq=(), position=(), quaternion=(), mode=Mode.POLICY)


class Terminal:
    """Somebody's, with the program at its other end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._person, program = os.openpty()
        self.program = os.fdopen(program)
        monkeypatch.setattr(sys, "stdin", self.program)

    def press(self, keys: str) -> None:
        os.write(self._person, keys.encode())

    def close(self) -> None:
        self.program.close()
        os.close(self._person)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    terminal = Terminal(monkeypatch)
    yield terminal
    terminal.close()


@pytest.fixture
def keyboard(terminal: Terminal) -> Iterator[KeyReader]:
    with open_terminal_keys() as keyboard:
        yield keyboard


def test_enter_ends_the_waiting_and_so_does_who_stops(terminal: Terminal, keyboard: KeyReader) -> None:
    terminal.press("xyz\n")
    asked: list[bool] = []
    wait_for_enter(keyboard, lambda: bool(asked.append(True)))
    # After each of the other keys.
    assert len(asked) >= 3
    more = iter([False, True])
    with pytest.raises(Stopped):
        wait_for_enter(keyboard, lambda: next(more))


def test_what_was_pressed_before_the_scene_is_prepared_does_not_confirm_it(
    terminal: Terminal, keyboard: KeyReader
) -> None:
    terminal.press("x\ns\n")
    assert keyboard.key(10.0) == "x"
    asked = iter([False, True])
    with pytest.raises(Stopped):
        ready_on_enter(keyboard, lambda: next(asked))(0)


def test_arrows_and_function_keys_are_no_letters(terminal: Terminal, keyboard: KeyReader) -> None:
    terminal.press("\x1b[B\x1b[F\x1bOS\x1b[11~Q")
    assert keyboard.key(10.0) == "q"
    assert keyboard.key(0.0) == ""


def test_a_verdict_is_of_its_own_episode(terminal: Terminal, keyboard: KeyReader) -> None:
    verdict = OperatorVerdict(keyboard)
    terminal.press("xf")
    assert keyboard.key(10.0) == "x"
    verdict.begin()
    assert not verdict(STATE, 0)
    assert not verdict.failed
    terminal.press("xS")
    assert keyboard.key(10.0) == "x"
    assert verdict(STATE, 0)
    terminal.press("xsf")
    assert keyboard.key(10.0) == "x"
    assert not verdict(STATE, 0)
    assert verdict.failed
    verdict.begin()
    assert not verdict.failed


def test_without_a_terminal_there_is_nobody_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        with pytest.raises(ValueError, match="run it in a terminal"):
            open_terminal_keys()
