"""What happens when a policy server is killed, stalled or replaced, or sends what is no answer."""

import socket
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.policies.bases.base_policy import random_observations
from robot_rl.policy_client import codec, connection
from robot_rl.policy_client.config import RemoteConfig
from robot_rl.policy_client.connection import PolicyLost
from robot_rl.policy_client.openpi_client import OpenpiClient
from robot_rl.policy_client.own_client import OwnClient
from robot_rl.policy_client.remote_base import RemoteBase, connect_base
from tests.robot_rl.policy_client.policy_servers import pack, served, stock
from tests.robot_rl.policy_client.test_openpi_client import ENVIRONMENT, MAPPING, Policy, observations
from tests.robot_rl.policy_server.small_policies import ACTION, HORIZON, STATE, environment, flow

PATIENCE = 60.0


def sample(base: RemoteBase) -> torch.Tensor:
    return base.sample(random_observations(base, 2), generator=torch.Generator()).actions


def set_timeout(base: RemoteBase, seconds: float) -> None:
    server = base._server
    assert isinstance(server, OwnClient | OpenpiClient)
    server._connection._timeout = seconds


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


def test_without_a_server_there_is_one_line() -> None:
    with served(flow()) as url:
        pass
    with pytest.raises(PolicyLost, match="refused: start it, or look at why it ended"):
        connect_base(RemoteConfig(url, timeout=0.3), {})


def test_a_killed_server_is_lost_and_a_new_one_with_the_same_policy_goes_on() -> None:
    with served(flow()) as url:
        base = connect_base(RemoteConfig(url, timeout=PATIENCE), {})
        before = sample(base)
    set_timeout(base, 0.3)
    with pytest.raises(PolicyLost, match="look at why it ended"):
        sample(base)
    set_timeout(base, PATIENCE)
    with served(flow(), port=port_of(url)):
        assert torch.equal(sample(base), before)


def test_a_request_waits_for_a_server_that_comes_back() -> None:
    with served(flow()) as url:
        base = connect_base(RemoteConfig(url, timeout=PATIENCE), {})
        before = sample(base)
    found: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: found.append(sample(base)))
    thread.start()
    time.sleep(0.3)
    with served(flow(), port=port_of(url)):
        thread.join(PATIENCE)
    assert torch.equal(found[0], before)


def test_a_connection_that_is_closed_before_the_first_answer_is_tried_again() -> None:
    """As by a server that is just ending, or by what forwards to one that is just starting."""
    with socket.create_server(("127.0.0.1", 0)) as closing:
        port = closing.getsockname()[1]
        url = f"ws://127.0.0.1:{port}"

        def close_one() -> None:
            accepted, _ = closing.accept()
            accepted.recv(1)
            accepted.shutdown(socket.SHUT_WR)
            accepted.recv(65536)
            accepted.close()
            closing.close()

        thread = threading.Thread(target=close_one)
        thread.start()
        found: list[RemoteBase] = []
        connecting = threading.Thread(
            target=lambda: found.append(connect_base(RemoteConfig(url, timeout=PATIENCE), {}))
        )
        connecting.start()
        thread.join(PATIENCE)
    with served(flow(), port=port):
        connecting.join(PATIENCE)
    assert found[0].spec == flow().spec


def test_a_replaced_server_is_refused() -> None:
    with served(flow()) as url:
        base = connect_base(RemoteConfig(url, timeout=PATIENCE), {})
    other = flow()
    torch.nn.init.normal_(other.state_normalizer.center)
    with served(other, port=port_of(url)), pytest.raises(PolicyLost, match="the server was replaced"):
        sample(base)


def test_a_replaced_openpi_server_is_found_by_its_answers() -> None:
    options = {**MAPPING, "timeout": PATIENCE}
    with stock(Policy()) as url:
        base = connect_base(RemoteConfig(url, **options), ENVIRONMENT)
    with stock(Policy(), port=port_of(url)):
        base.sample(observations(1))
    with (
        stock(lambda _: {"actions": np.zeros((3, 3))}, port=port_of(url)),
        pytest.raises(PolicyLost, match="the server was replaced"),
    ):
        base.sample(observations(1))


def test_a_stalled_server_is_lost_in_time_and_its_late_answer_is_not_taken() -> None:
    go, slow = threading.Event(), threading.Event()

    def infer(request: Any) -> dict[str, Any]:
        if slow.is_set():
            slow.clear()
            assert go.wait(PATIENCE)
            return {"actions": np.ones((3, 3))}
        return {"actions": np.zeros((3, 3))}

    with stock(infer) as url:
        base = connect_base(RemoteConfig(url, timeout=PATIENCE, **MAPPING), ENVIRONMENT)
        set_timeout(base, 0.5)
        slow.set()
        with pytest.raises(PolicyLost, match=r"no answer within 0\.5 s"):
            base.sample(observations(1))
        go.set()
        set_timeout(base, PATIENCE)
        assert base.sample(observations(1)).actions[0, 0, 0].tolist() == [0, 0, 1]


METADATA = {
    "server": "robot-rl",
    "kind": "base",
    "fingerprint": "0123456789abcdef",
    "max_batch": 8,
    "environment": environment(),
    "spec": flow().spec.as_dict(),
}


def answer(noise: np.ndarray) -> np.ndarray:
    return np.tanh(noise)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (b"\xc1", "not a msgpack message"),
        (pack([1]), "a message is a map"),
        ("Traceback …\nValueError: no memory\n", "it says 'ValueError: no memory'"),
        ({}, "its samples are no float32 array"),
        ({"samples": np.zeros((2, 1, HORIZON, ACTION + 1), np.float32)}, "its samples are no float32 array"),
        ({"samples": np.zeros((2, 1, HORIZON, ACTION))}, "its samples are no float32 array"),
        ({"samples": np.full((2, 1, HORIZON, ACTION), np.nan, np.float32)}, r"not in \[-1, 1\]"),
        ({"samples": np.full((2, 1, HORIZON, ACTION), 2, np.float32)}, r"not in \[-1, 1\]"),
    ],
)
def test_what_is_no_answer_is_refused_in_one_line(reply: Any, words: str) -> None:
    odd = threading.Event()

    def infer(request: Any) -> Any:
        return reply if odd.is_set() else {"samples": answer(request["__noise__"])}

    with stock(infer, METADATA) as url:
        base = connect_base(RemoteConfig(url, timeout=PATIENCE), {})
        odd.set()
        with pytest.raises(PolicyLost, match=words) as caught:
            sample(base)
        assert "\n" not in str(caught.value)


def test_an_answer_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_MESSAGE", 4096)
    odd = threading.Event()

    def infer(request: Any) -> Any:
        more = bytes(5000) if odd.is_set() else b""
        return {"samples": answer(request["__noise__"]), "more": more}

    with stock(infer, METADATA) as url:
        base = connect_base(RemoteConfig(url, timeout=PATIENCE), {})
        odd.set()
        with pytest.raises(PolicyLost, match="larger than one of the two accepts"):
            sample(base)
    assert codec.MAX_MESSAGE > 4096


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("not metadata", "instead of its metadata"),
        (b"\xc1", "not a msgpack message"),
        ({"spec": {"state_size": 1}}, "describes itself in another way"),
        ({"fingerprint": "0" * 100}, "describes itself in another way"),
        ({"spec": {**flow().spec.as_dict(), "horizon": 10**9}}, "sizes that cannot be"),
        ({"spec": {**flow().spec.as_dict(), "noise_shape": [4, -2]}}, "sizes that cannot be"),
        ({"state_range": {"center": [0.0], "half_range": [1.0]}}, "sizes that cannot be"),
        ({"max_batch": 0}, "sizes that cannot be"),
        *(
            (
                {"state_range": {"center": [0.0] * STATE, "half_range": [1.0] * (STATE - 1) + [width]}},
                "a range of states that cannot be",
            )
            for width in (0.0, -1.0, float("nan"), float("inf"))
        ),
        ({"example_instruction": "x" * 129}, "has 129 bytes"),
    ],
)
def test_a_damaged_description_is_refused_in_one_line(change: Any, words: str) -> None:
    metadata = {**METADATA, **change} if isinstance(change, dict) else change
    with (
        stock(lambda _: {}, metadata) as url,
        pytest.raises(ValueError, match=words) as caught,
    ):
        connect_base(RemoteConfig(url, timeout=PATIENCE), {})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://127.0.0.1:1",
        "ws://",
        "ws://127.0.0.1:99999",
        "wss://[::1",
        "ws://me@127.0.0.1:1",
        "ws://127.0.0.1:1/#a",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="give ws://host:port"):
        connect_base(RemoteConfig(url, timeout=1), {})


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_a_time_that_is_no_limit_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="it must be positive and finite"):
        RemoteConfig("ws://127.0.0.1:1", timeout=seconds)
