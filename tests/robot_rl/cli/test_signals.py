"""Signals become requests to stop, except one that the process ignores."""

import os
import signal

import pytest

from robot_rl.cli.signals import interrupted_by_signal, stop_on_signal


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_asks_a_loop_to_stop_and_interrupts_a_command_that_has_none(number: int) -> None:
    # Under nohup this process ignores SIGHUP.
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with stop_on_signal() as stop:
            assert not stop()
            os.kill(os.getpid(), number)
            assert stop()
        with pytest.raises(KeyboardInterrupt), interrupted_by_signal():
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_a_closed_terminal_does_not_stop_what_ignores_it() -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signal() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop()
    finally:
        signal.signal(signal.SIGHUP, before)
