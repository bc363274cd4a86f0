"""Messages of openpi's protocol: arrays arrive as they were sent, and damaged ones are refused."""

import tracemalloc
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robot_rl.policy_client.codec import MessageError, decode, decode_request, encode

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
        ({b"shape": [0, 2**64 - 1], b"data": b""}, "not a msgpack message"),
        ({b"dtype": "|O"}, "not accepted"),
        ({b"dtype": "<c8"}, "not accepted"),
        ({b"dtype": "f4,f4"}, "not accepted"),
        ({b"dtype": "S8"}, "not accepted"),
        ({b"dtype": "nonsense"}, "no data type"),
        # numpy takes long for a list of types.
        ({b"dtype": ",".join(["f4"] * 1000)}, "no data type"),
        ({b"dtype": 4}, "needs data, dtype and shape"),
        ({b"data": "text"}, "needs data, dtype and shape"),
    ],
)
def test_a_damaged_array_is_refused_in_one_line(change: dict[bytes, Any], words: str) -> None:
    for read in (decode, decode_request):
        with pytest.raises(MessageError, match=words) as caught:
            read(msgspec.msgpack.encode({"state": {**ARRAY, **change}}))
        assert "\n" not in str(caught.value)


def test_an_array_has_few_axes() -> None:
    frame = msgspec.msgpack.encode({"state": {**ARRAY, b"shape": [2] + [1] * 40}})
    with pytest.raises(MessageError, match="does not fit"):
        decode(frame)
    with pytest.raises(MessageError, match="length <= 8"):
        decode_request(frame)


@pytest.mark.parametrize(
    "frame", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x81\x01\x02", b"\x81\x80\x01", b"\x91" * 5000]
)
def test_what_is_no_map_of_names_is_refused(frame: bytes) -> None:
    for read in (decode, decode_request):
        with pytest.raises(MessageError):
            read(frame)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_decode_or_be_refused(frame: bytes) -> None:
    for read in (decode, decode_request):
        with suppress(MessageError):
            assert isinstance(read(frame), dict)


def test_a_request_has_the_values_of_the_message() -> None:
    sent = {
        "state": np.arange(6, dtype=np.float32).reshape(2, 3),
        "prompt": ["a", "b"],
        "n": np.int64(3),
        "no": None,
    }
    found = decode_request(encode(sent))
    np.testing.assert_array_equal(found.pop("state"), sent.pop("state"))
    assert found == sent


@pytest.mark.parametrize(
    "begin",
    [b"\x81\xa1a\xdd", b"\x81\xa1a\xdf", b"\x81\xa1a\x81\xc4\x01b\xdd", b"\xdf"],
    ids=["list", "map", "list in a map", "names"],
)
def test_a_request_of_a_million_containers_is_refused_before_they_are_made(begin: bytes) -> None:
    count = 1_000_000
    frame = begin + count.to_bytes(4, "big") + b"\x80" * 2 * count
    tracemalloc.start()
    with pytest.raises(MessageError):
        decode_request(frame)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # An empty map takes 64 bytes.
    assert most < 4 * len(frame)


@pytest.mark.parametrize(
    "request_",
    [
        {"__seed__": b"x" * 2**20},
        {"prompt": "x" * 2**20},
        {"prompt": ["x" * 2**20]},
        {"x" * 2**20: 1},
        {"__seed__": {b"__npgeneric__": True, b"data": b"x" * 2**20, b"dtype": "<i8"}},
        {"state": {b"__ndarray__": True, b"data": b"", b"dtype": "x" * 2**20, b"shape": [0]}},
    ],
    ids=["bytes", "text", "list", "name", "scalar", "data type"],
)
def test_only_arrays_are_long_so_that_no_message_quotes_megabytes(request_: dict[str, Any]) -> None:
    with pytest.raises(MessageError) as refused:
        decode_request(msgspec.msgpack.encode(request_))
    assert len(str(refused.value)) < 200
