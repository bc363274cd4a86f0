"""A gamepad by its events, as the kernel writes them."""

import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from robot_rl.hardware.clock import MS
from robot_rl.hardware.teleop.device import STALE_HOLD_MS, DeviceError
from robot_rl.hardware.teleop.gamepad import STILL_MS, Gamepad, GamepadDecoder, GamepadSettings, Held, Range
from robot_rl.hardware.teleop.reader import FileDevice
from tests.hardware.processes import eventually
from tests.hardware.teleop.feeding import Feed

STICK = Range(-32768, 32767)
RANGES = {0: STICK, 1: STICK, 3: STICK, 4: STICK, 0x10: Range(-1, 1), 0x11: Range(-1, 1)}
RB, LB, A, B, START, THUMBL = 0x137, 0x136, 0x130, 0x131, 0x13B, 0x13D
SYN, KEY, ABS = 0, 1, 3
REST = (0.0,) * 6


def event(kind: int, code: int, value: int, t_ms: float) -> bytes:
    micros = round(t_ms * 1000)
    return struct.pack("llHHi", micros // 1_000_000, micros % 1_000_000, kind, code, value)


def pad(keys: frozenset[int] = frozenset()) -> GamepadDecoder:
    return GamepadDecoder(RANGES, lambda: Held(dict.fromkeys(RANGES, 0), keys))


@pytest.mark.parametrize(
    ("code", "value", "axis", "sign"),
    [
        (1, -32768, 0, 1),  # left stick away
        (0, 32767, 1, -1),  # to the right
        (4, -32768, 2, 1),  # right stick away: up
        (3, 32767, 5, -1),
        (0x10, 1, 3, 1),
        (0x11, -1, 4, 1),
    ],
)
def test_sticks_move_and_turn_the_tool(code: int, value: int, axis: int, sign: int) -> None:
    decoder = pad()
    decoder.feed(event(ABS, code, value, 1000), 1000 * MS)
    motion = decoder.sample(1000 * MS).motion
    assert motion == pytest.approx([float(sign) if i == axis else 0.0 for i in range(6)], abs=1e-4)
    decoder.feed(event(ABS, code, 0, 1001), 1001 * MS)
    assert decoder.sample(1001 * MS).motion == pytest.approx(REST)


def test_the_deadman_has_to_be_held() -> None:
    decoder = pad()
    decoder.feed(event(KEY, RB, 1, 10), 10 * MS)
    assert decoder.sample(11 * MS).enable
    decoder.feed(event(KEY, RB, 0, 12), 12 * MS)
    assert not decoder.sample(13 * MS).enable


def test_buttons_grasp_release_and_mark_once() -> None:
    decoder = pad(frozenset({RB}))
    decoder.feed(event(KEY, A, 1, 10) + event(KEY, START, 1, 10) + event(KEY, LB, 1, 11), 11 * MS)
    sample = decoder.sample(11 * MS)
    assert (sample.gripper, sample.marks) == (0.0, ("begin", "stop"))
    decoder.feed(event(KEY, B, 1, 12), 12 * MS)
    sample = decoder.sample(12 * MS)
    assert (sample.gripper, sample.marks) == (1.0, ())


def test_a_stick_that_is_held_too_still_is_a_link_that_died() -> None:
    decoder = pad()
    decoder.feed(event(ABS, 1, -32768, 1000), 1001 * MS)
    assert decoder.sample(1500 * MS).t == 1500 * MS
    last = (1000 + STILL_MS) * MS
    assert decoder.sample(last + 1).t == last
    assert decoder.sample(last + 10_000 * MS).t == last
    # At rest a silent one is one that rests.
    decoder.feed(event(ABS, 1, 0, 20_000), 20_000 * MS)
    assert decoder.sample(90_000 * MS).t == 90_000 * MS


def test_events_that_waited_have_their_own_time() -> None:
    decoder = pad()
    decoder.forget(event(ABS, 1, -32768, 1000), 9000 * MS)
    assert 9000 * MS - decoder.sample(9000 * MS).t > STALE_HOLD_MS * MS


def test_buttons_pressed_while_the_program_was_suspended_do_nothing_but_stop() -> None:
    decoder = pad()
    pressed = b"".join(event(KEY, code, 1, 1000) for code in (THUMBL, A, LB, START, RB))
    decoder.forget(pressed + event(KEY, B, 1, 5900), 6000 * MS)
    sample = decoder.sample(6000 * MS)
    assert sample.marks == ("stop",)
    # What is held now, and what was pressed just now, counts.
    assert sample.enable
    assert sample.gripper == 1.0
    decoder.forget(event(KEY, A, 1, 6000), 11_000 * MS)
    assert decoder.sample(11_000 * MS).gripper == 1.0


def test_after_lost_events_the_kernel_is_asked_what_is_held() -> None:
    held = [Held(dict.fromkeys(RANGES, 0), frozenset({RB}))]
    decoder = GamepadDecoder(RANGES, lambda: held[0])
    assert decoder.sample(0).enable
    held[0] = Held(dict.fromkeys(RANGES, 0), frozenset())
    dropped = event(SYN, 3, 0, 10) + event(ABS, 1, -32768, 11) + event(SYN, 0, 0, 12)
    decoder.feed(dropped, 12 * MS)
    sample = decoder.sample(12 * MS)
    assert not sample.enable
    assert sample.motion == pytest.approx(REST)


def test_events_may_come_in_pieces() -> None:
    decoder = pad()
    whole = event(KEY, RB, 1, 10) + event(ABS, 1, -32768, 10)
    for byte in whole:
        decoder.feed(bytes((byte,)), 10 * MS)
    sample = decoder.sample(11 * MS)
    assert sample.enable
    assert sample.motion[0] == pytest.approx(1.0)


class Piped(Gamepad):
    """Events from a pipe, which knows no ioctl."""

    @contextmanager
    def _events(self, path: str | None) -> Iterator[int]:
        assert path is not None
        self._decoder = pad()
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            yield file
        finally:
            os.close(file)


def test_a_gamepad_is_read_and_its_unplugging_is_named(tmp_path: Path) -> None:
    with Feed(tmp_path / "event0") as feed, Piped(GamepadSettings(str(tmp_path / "event0"))) as device:
        feed.write(event(KEY, RB, 1, time.monotonic_ns() / MS))
        eventually(lambda: (s := device.read()) and s.enable, "the deadman")
        feed.unplug()
        eventually(lambda: gone(device), "it is gone")


def gone(device: FileDevice) -> bool:
    try:
        device.read()
    except DeviceError as error:
        return str(error) == "the gamepad is disconnected: plug it in and start again"
    return False


def test_where_there_is_none_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"gamepad: .*event9: .*is it plugged in"):
        Gamepad(GamepadSettings(str(tmp_path / "event9"))).__enter__()
    if not Path("/dev/input").exists():
        with pytest.raises(DeviceError, match="no gamepad is plugged in"):
            Gamepad(GamepadSettings()).__enter__()


def test_the_button_that_grasped_counts_again_after_the_deadman() -> None:
    decoder = pad(frozenset({RB}))
    decoder.feed(event(KEY, A, 1, 10), 10 * MS)
    held = decoder.sample(11 * MS).gripper
    assert held is not None
    decoder.feed(event(KEY, RB, 0, 12), 12 * MS)
    assert decoder.sample(13 * MS).gripper is None
    decoder.feed(event(KEY, RB, 1, 14), 14 * MS)
    assert decoder.sample(15 * MS).gripper is None
    decoder.feed(event(KEY, A, 1, 16), 16 * MS)
    assert decoder.sample(17 * MS).gripper == held
