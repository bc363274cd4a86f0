"""Random and mutated frames: a decoder answers with a message or a `ProtocolError`, and forgets them."""

import random
import tracemalloc
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace

from robot_rl.hardware.protocol.arrays import Frame, decode_image, encode_image
from robot_rl.hardware.protocol.codec import ProtocolError, decode_client, decode_server, encode
from tests.hardware.protocol.examples import CLIENT, SERVER

_FRAME = Frame(
    camera="wrist",
    number=1,
    t_capture=1,
    t_capture_raw=1,
    t_recv=1,
    height=4,
    width=6,
    encoding="rgb8",
    dropped=0,
)
_IMAGES = [encode_image(_FRAME, np.zeros((4, 6, 3), np.uint8).data)]
_DECODERS: tuple[tuple[Callable[[bytes], object], list[bytes]], ...] = (
    (decode_client, [*(encode(message) for message in CLIENT), encode(replace(CLIENT[0], protocol=(2, 0)))]),
    (decode_server, [*(encode(message) for message in SERVER), encode(replace(SERVER[0], protocol=(2, 0)))]),
    (decode_image, _IMAGES),
)
# First bytes of what is long or deep in msgpack.
_NASTY = [
    bytes([first]) + length
    for first in (0xC6, 0xC9, 0xDB, 0xDD, 0xDF)
    for length in (b"\xff" * 4, b"\x7f\0\0\0")
] + [b"\x91" * 2000, b"\x81" * 2000, b"\xc1", b"\xcb\x7f\xf8\0\0\0\0\0\0", b"\xcf" + b"\xff" * 8]
_PEAK = 4 * 2**20


def _mutated(rng: random.Random, frame: bytes) -> bytes:
    data = bytearray(frame)
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0 if at < len(data):
                data[at] = rng.randrange(256)
            case 1 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 2:
                del data[at : at + rng.randrange(1, 9)]
            case 3:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 4:
                data[at:at] = rng.choice(_NASTY)
            case _:
                data[at:at] = data[rng.randrange(len(data) + 1) :][: rng.randrange(1, 64)]
    return bytes(data)


def _fuzz(seed: int, frames: int) -> Counter[str]:
    """What became of them."""
    rng = random.Random(seed)
    found: Counter[str] = Counter()
    for _ in range(frames):
        decode, valid = rng.choice(_DECODERS)
        chance = rng.random()
        if chance < 0.05:
            frame = rng.randbytes(rng.choice((0, 1, 2, 10, 100, 1000, 70_000)))
        elif chance < 0.1:
            frame = rng.choice(valid)[: rng.randrange(100)]
        else:
            frame = _mutated(rng, rng.choice(valid))
        try:
            found[type(decode(frame)).__name__] += 1
        except ProtocolError as error:
            found[error.code] += 1
    return found


def _check(frames: int) -> None:
    _fuzz(seed=0, frames=2000)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        found = _fuzz(seed=1, frames=frames)
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # It went both ways: deep into the decoders, and out of them for every reason.
    assert found.total() == frames
    assert {"malformed", "version", "too_big", "Command", "State"} <= found.keys()
    assert found["malformed"] > frames // 2
    assert after - before < 100_000, "frames are kept"
    assert peak - before < _PEAK, "a short frame made the decoder ask for much memory"


def test_ten_thousand_bad_frames_do_no_harm() -> None:
    _check(10_000)


@pytest.mark.full
def test_a_million_bad_frames_do_no_harm() -> None:
    _check(1_000_000)
