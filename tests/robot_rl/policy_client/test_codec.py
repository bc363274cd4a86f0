"""Messages of openpi's protocol: arrays arrive as they were sent, and damaged ones are refused."""

from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robot_rl.policy_client.codec import MessageError, decode, encode

ARRAY = {b"__ndarray__": True, b"data": bytes(8), b"dtype": "<f4", b"shape": [2]}


@pytest.mark.parametrize("dtype", ["uint8", "bool", "int64", "float16", "float32", "float64", ">f4"])
def test_arrays_arrive_as_they_were_sent(dtype: str) -> None:
    sent = np.arange(6).reshape(1, 2, 3).astype(dtype)
    found = decode(encode({"images": {"wrist": sent}, "text": "a", "list": [sent, 1.5, None]}))
    for array in (found["images"]["wrist"], found["list"][0]):
        assert array.dtype == sent.dtype
        assert np.array_equal(array, sent)
    assert found["text"] == "a"
    assert decode(encode({"one": np.float32(0.5)}))["one"] == 0.5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({b"shape": [3]}, "does not fit its 8 bytes"),
        ({b"shape": [-2]}, "does not fit"),
        ({b"shape": [2**40, 2**40]}, "does not fit"),
        ({b"shape": [2] + [1] * 40}, "does not fit"),
        ({b"shape": [0, 2**64 - 1], b"data": b""}, "not a msgpack message"),
        ({b"dtype": "|O"}, "not accepted"),
        ({b"dtype": "<c8"}, "not accepted"),
        ({b"dtype": "f4,f4"}, "not accepted"),
        ({b"dtype": "S8"}, "not accepted"),
        ({b"dtype": "nonsense"}, "no data type"),
        ({b"dtype": 4}, "needs data, dtype and shape"),
        ({b"data": "text"}, "needs data, dtype and shape"),
    ],
)
def test_a_damaged_array_is_refused_in_one_line(change: dict[bytes, Any], words: str) -> None:
    with pytest.raises(MessageError, match=words) as caught:
        decode(msgspec.msgpack.encode({"state": {**ARRAY, **change}}))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "frame", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x81\x01\x02", b"\x81\x80\x01", b"\x91" * 5000]
)
def test_what_is_no_map_of_names_is_refused(frame: bytes) -> None:
    with pytest.raises(MessageError):
        decode(frame)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_decode_or_be_refused(frame: bytes) -> None:
    with suppress(MessageError):
        assert isinstance(decode(frame), dict)
