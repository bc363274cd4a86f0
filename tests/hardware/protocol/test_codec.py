"""A message arrives as it was sent; anything else is refused with a code and a short reason."""

import threading
from typing import Any, get_args

import msgspec
import pytest

from robot_rl.hardware.clock import SteppedClock
from robot_rl.hardware.protocol import messages as m
from robot_rl.hardware.protocol.codec import (
    MAX_CONTROL,
    ProtocolError,
    Stamper,
    decode_client,
    decode_server,
    encode,
)
from tests.hardware.protocol.examples import CLIENT, SERVER

ENVELOPE = {"src": "a", "seq": 1, "tm": 1}


def _fields(message: m.Message) -> dict[str, Any]:
    """As the wire has them."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message))


def _refusal(frame: bytes, decode: Any = decode_client) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        decode(frame)
    return caught.value


def test_there_is_an_example_of_every_message_with_every_field() -> None:
    assert {type(message) for message in CLIENT} == set(get_args(m.ClientMessage))
    assert {type(message) for message in SERVER} == set(get_args(m.ServerMessage))
    for message in (*CLIENT, *SERVER):
        assert set(_fields(message)) == {"t", *message.__struct_fields__}


@pytest.mark.parametrize("message", CLIENT, ids=lambda message: type(message).__name__)
def test_what_a_client_sends_arrives(message: m.Message) -> None:
    frame = encode(message)
    assert decode_client(frame) == message
    assert decode_client(memoryview(frame)) == message
    assert _refusal(frame, decode_server).code == m.Code.MALFORMED


@pytest.mark.parametrize("message", SERVER, ids=lambda message: type(message).__name__)
def test_what_the_server_sends_arrives(message: m.Message) -> None:
    frame = encode(message)
    assert decode_server(frame) == message
    assert decode_server(memoryview(frame)) == message
    assert _refusal(frame).code == m.Code.MALFORMED


def test_a_message_is_not_decoded_before_its_size_is_known() -> None:
    fits = encode(m.Stop(**ENVELOPE, reason="x"))
    padded = fits + b"\0" * (MAX_CONTROL - len(fits))
    assert _refusal(padded).code == m.Code.MALFORMED
    # The same one byte longer is not looked into: a decoder would call it malformed.
    assert _refusal(padded + b"\0").code == m.Code.TOO_BIG
    assert _refusal(b"\xc1" * (MAX_CONTROL + 1), decode_server).code == m.Code.TOO_BIG


def test_what_would_be_refused_for_its_size_is_not_sent() -> None:
    event = m.Event(**ENVELOPE, what="mode", text="x" * 1000)
    with pytest.raises(ProtocolError) as caught:
        encode(m.Events(**ENVELOPE, events=(event,) * 100, oldest=1))
    assert caught.value.code == m.Code.TOO_BIG


@pytest.mark.parametrize("decode", [decode_client, decode_server])
@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\x80",
        b"hello",
        b"\x91" * 60_000,
        b"\x81" * 60_000,
        msgspec.msgpack.encode({"t": "launch", **ENVELOPE}),
        msgspec.msgpack.encode({"t": 3, **ENVELOPE}),
        msgspec.msgpack.encode(["stop", 1, 2]),
        msgspec.msgpack.encode(msgspec.msgpack.Ext(1, b"payload")),
        # An array that says it has 2^32 - 1 elements.
        b"\x82\xa1t\xa6events\xa6events\xdd\xff\xff\xff\xff",
        # Text that is not UTF-8, as the tag, as a key and as a value.
        b"\x81\xa1t\xa2\xff\xfe",
        b"\x82\xa1t\xa5hello\xa2\xff\xfe\x01",
        b"\x82\xa1t\xa5hello\xa4name\xa2\xff\xfe",
        b"\x82\xa1t\xa7welcome\xa7session\xa2\xff\xfe",
        # A version that is not two numbers, and one in a message with something else wrong.
        msgspec.msgpack.encode({"t": "hello", "protocol": "2"}),
        msgspec.msgpack.encode({"t": "hello", "protocol": [2**63, 2**64 - 1, 1]}),
        b"\x82\xa1t\xa5hello\xa1x" + b"\x91" * 60_000,
        b"\x82\xa1t\xa7welcome\xa1x" + b"\x91" * 60_000,
    ],
)
def test_what_is_no_message_is_malformed(frame: bytes, decode: Any) -> None:
    refusal = _refusal(frame, decode)
    assert refusal.code == m.Code.MALFORMED
    assert refusal.reason


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("command", {"lease": -1}),
        ("command", {"lease": 2**63}),
        ("command", {"lease": 1.5}),
        ("command", {"lease": "1"}),
        ("command", {"lease": True}),
        ("command", {"mode": "torque"}),
        ("command", {"data": [0.0] * 65}),
        ("command", {"data": ["0"]}),
        ("command", {"data": None}),
        ("command", {"gripper": 1.01}),
        ("command", {"gripper": float("nan")}),
        ("command", {"ttl_ms": 0}),
        ("command", {"ttl_ms": 1001}),
        ("command", {"src": "x" * 129}),
        ("command", {"force": 3}),
        ("hello", {"role": "admin"}),
        ("hello", {"protocol": [1]}),
        ("acquire_lease", {"kind": "robot"}),
        ("acquire_lease", {"preempt": 1}),
        ("acknowledge_fault", {"reason": ""}),
        ("acknowledge_fault", {"reason": "x" * 501}),
    ],
)
def test_a_field_of_the_wrong_type_or_range_is_refused(kind: str, changes: dict[str, Any]) -> None:
    fields = next(_fields(message) for message in CLIENT if _fields(message)["t"] == kind)
    decode_client(msgspec.msgpack.encode(fields))
    assert _refusal(msgspec.msgpack.encode(fields | changes)).code == m.Code.MALFORMED


def test_every_field_without_a_default_is_needed() -> None:
    for message in CLIENT:
        fields = _fields(message)
        decode_client(msgspec.msgpack.encode(fields))
        needed = [field.name for field in msgspec.structs.fields(message) if field.required]
        assert needed[:3] == ["src", "seq", "tm"]
        for name in needed:
            left = {key: value for key, value in fields.items() if key != name}
            assert _refusal(msgspec.msgpack.encode(left)).code == m.Code.MALFORMED


def test_another_major_version_is_named_even_where_it_says_more_than_we_know() -> None:
    hello, welcome = _fields(CLIENT[0]), _fields(SERVER[0])
    for fields, decode in ((hello, decode_client), (welcome, decode_server)):
        for changes in ({}, {"colour": "blue"}, {"name": 7}, {"spec": {"tools": [1]}}):
            frame = msgspec.msgpack.encode(fields | changes | {"protocol": [2, 3]})
            refusal = _refusal(frame, decode)
            assert refusal.code == m.Code.VERSION
            assert "2.3" in refusal.reason
        strange = msgspec.msgpack.encode(fields | {"colour": "blue"})
        assert _refusal(strange, decode).code == m.Code.MALFORMED
        newer = decode(msgspec.msgpack.encode(fields | {"protocol": [m.PROTOCOL[0], 99]}))
        assert newer.protocol == (m.PROTOCOL[0], 99)


def test_a_reason_is_one_short_printable_line_whatever_the_peer_wrote() -> None:
    for key in ("x" * 60_000, "a\nb\x1b[2J\u202e" * 10):
        reason = _refusal(msgspec.msgpack.encode({"t": "stop", **ENVELOPE, key: 1})).reason
        assert 0 < len(reason) <= 200
        assert reason.isprintable()
    # So that it fits into the answer.
    encode(m.Refused(**ENVELOPE, code=m.Code.MALFORMED, reason=reason))


def test_an_envelope_has_sender_count_times_and_request() -> None:
    clock = SteppedClock(start=5)
    stamp = Stamper("me", clock, wall=lambda: 77)
    first = stamp(m.Pause)
    clock.advance(10)
    second = stamp(m.Pause)
    assert first == m.Pause(src="me", seq=1, tm=5, tw=77)
    assert second == m.Pause(src="me", seq=2, tm=15, tw=77)
    assert stamp(m.Resume).seq == 1, "kinds are counted apart"
    asked = [stamp.request(m.GetSpec), stamp.request(m.EventsSince, after=3)]
    assert [message.id for message in asked] == [1, 2]
    assert stamp(m.Done, id=asked[1].id, mode=m.Mode.IDLE).id == 2


def test_threads_that_share_a_stamper_never_get_the_same_number() -> None:
    stamp = Stamper("me", SteppedClock())
    seen: list[list[m.Stop]] = [[] for _ in range(4)]

    def work(mine: list[m.Stop]) -> None:
        mine.extend(stamp.request(m.Stop) for _ in range(5000))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for numbers in ([x.seq for mine in seen for x in mine], [x.id for mine in seen for x in mine]):
        assert sorted(numbers) == list(range(1, 20_001))
