"""Messages are decoded as they were encoded; anything else is rejected and never executed."""

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robot_rl.hardware.protocol.codec import ProtocolError
from robot_rl.hardware.protocol.large_messages import Array, encode, pack, pack_all, unpack
from robot_rl.hil.link.messages import (
    PROTOCOL,
    Hello,
    Step,
    Weights,
    from_actor,
    from_learner,
    pack_tensors,
    unpack_tensors,
)

STEP = Step(
    episode=3,
    index=7,
    version=2,
    source="human",
    fields=pack_all(
        {
            "state": np.arange(5, dtype=np.float32),
            "images.front": np.arange(48, dtype=np.uint8).reshape(4, 4, 3),
            "chunk_step": np.asarray(np.int64(3)),
            "base_samples": np.zeros((2, 4, 7), np.float32),
        }
    ),
    action=pack(np.array([0.5, -1], np.float32)),
    proposed=pack(np.array([0.1, 1], np.float32)),
    reward=1.0,
    terminated=True,
)


def test_a_step_is_decoded_as_it_was_encoded() -> None:
    found = from_actor(encode(STEP))
    assert found == STEP
    assert isinstance(found, Step)
    assert unpack(found.fields["images.front"]).shape == (4, 4, 3)
    assert unpack(found.fields["chunk_step"]) == 3
    np.testing.assert_array_equal(unpack(found.action), np.array([0.5, -1], np.float32))


def test_weights_are_decoded_as_they_were_encoded() -> None:
    tensors = {"a": torch.randn(3, 4), "steps": torch.tensor(5), "on": torch.tensor([True, False])}
    sent = Weights(learner="l", version=1, warm=True, tensors=pack_tensors(tensors))
    got = from_learner(encode(sent))
    assert isinstance(got, Weights)
    found = unpack_tensors(got.tensors, tensors)
    assert all(torch.equal(found[name], value) for name, value in tensors.items())
    assert found["on"].dtype == torch.bool


def test_weights_of_another_policy_are_rejected() -> None:
    sent = pack_tensors({"a": torch.zeros(3)})
    with pytest.raises(ProtocolError, match="this policy has no weights"):
        unpack_tensors(sent, {"a": torch.zeros(4)})
    with pytest.raises(ProtocolError, match="this policy has no weights"):
        unpack_tensors(sent, {"b": torch.zeros(3)})


@given(at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_a_damaged_frame_is_rejected(at: int, flip: int) -> None:
    frame = bytearray(encode(STEP))
    frame[at % len(frame)] ^= flip
    with pytest.raises(ProtocolError):
        from_actor(bytes(frame))


@given(st.binary(max_size=200))
def test_random_bytes_are_rejected(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        from_actor(frame)
    with pytest.raises(ProtocolError):
        from_learner(frame)


@pytest.mark.parametrize("array", [Array("<f4", (3,), bytes(8)), Array("<f4", (2**40,), b"")])
def test_an_array_with_inconsistent_size_is_rejected(array: Array) -> None:
    with pytest.raises(ProtocolError):
        unpack(array)


def test_object_arrays_are_rejected() -> None:
    with pytest.raises(ProtocolError, match="not allowed"):
        pack(np.array([object()]))


def test_a_greeting_has_nothing_that_learners_of_earlier_versions_do_not_know() -> None:
    """So that they can answer which versions differ; fields that are not used are left out."""
    hello = Hello(protocol=PROTOCOL, src="a", connection=0, run="", episodes=())
    frame = encode(hello)
    after_checksum = msgspec.msgpack.decode(frame[4:])
    assert after_checksum.keys() == {"t", "protocol", "src", "connection", "run", "episodes"}
    assert from_actor(frame) == hello
