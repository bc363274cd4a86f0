"""A policy server and real clients: all are answered, and none harms another."""

import json
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from robot_rl.policy_client.codec import decode, encode
from robot_rl.policy_client.connection import PolicyRefused
from robot_rl.policy_server import server as server_module
from robot_rl.policy_server.inference import PolicyInference
from robot_rl.policy_server.requests import Query
from robot_rl.policy_server.server import Listen, PolicyServer
from tests.hardware.processes import eventually
from tests.robot_rl.policy_server.small_policies import ACTION, HORIZON, environment, flow, observation

PATIENCE = 60.0


@contextmanager
def serving(inference: Any = None, **listen: Any) -> Iterator[int]:
    server = PolicyServer(inference or PolicyInference(flow(), environment(), 0), Listen(port=0, **listen))
    port = server.start()
    try:
        yield port
        server.check()
    finally:
        server.close()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving() as port:
        yield port


@contextmanager
def client(port: int, **options: Any) -> Iterator[ClientConnection]:
    with connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None, **options) as connection:
        metadata = decode(connection.recv(PATIENCE))  # type: ignore[arg-type]
        assert metadata["server"] == "robot-rl"
        yield connection


def ask(connection: ClientConnection, request: dict[str, Any]) -> dict[str, Any]:
    connection.send(encode(request))
    reply = connection.recv(PATIENCE)
    assert isinstance(reply, bytes), reply
    return decode(reply)


def health(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=PATIENCE) as response:
        return json.loads(response.read())


def test_a_client_is_answered_and_the_health_page_counts_it(port: int) -> None:
    with client(port) as connection:
        before = health(port)
        reply = ask(connection, {**observation(), "prompt": "lift the cube"})
        assert reply["actions"].shape == (HORIZON, ACTION)
        assert reply["server_timing"]["infer_ms"] > 0
        after = health(port)
        assert after["answered"] == before["answered"] + 1
        assert after["clients"] >= 1
        assert 0 < after["latency_ms"]["p50"] <= after["latency_ms"]["p99"]


def test_a_bad_request_gets_one_line_and_the_next_one_an_answer(port: int) -> None:
    with client(port) as connection:
        for bad in (b"", b"\xc1\xff", encode({"state": 1}), encode({}), "text"):
            connection.send(bad)
            line = connection.recv(PATIENCE)
            assert isinstance(line, str)
            assert "\n" not in line
        assert "actions" in ask(connection, observation())


def test_what_clients_do_to_a_server_affects_no_other(port: int) -> None:
    with client(port) as good:
        ask(good, observation())
        # One leaves without waiting for its answer, one in the middle of a message, one sends too much.
        with client(port) as leaving:
            leaving.send(encode(observation()))
        raw = socket.create_connection(("127.0.0.1", port))
        raw.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nUpgr")
        raw.close()
        with client(port) as rude, pytest.raises(ConnectionClosed):
            _exchange(rude, bytes(server_module.MAX_MESSAGE + 1))
        assert "actions" in ask(good, observation())


def test_a_client_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_SEND_TIMEOUT", 0.2)
    with serving() as port, client(port) as good:
        many = np.zeros((64, HORIZON, ACTION), np.float32)
        request = encode({**observation(), "__noise__": many, "__return_samples__": True})
        deaf = connect(f"ws://127.0.0.1:{port}", compression=None, max_queue=1)
        thread = threading.Thread(target=_flood, args=(deaf, request), daemon=True)
        thread.start()
        end = time.monotonic() + PATIENCE
        while health(port)["clients"] > 1 and time.monotonic() < end:
            assert "actions" in ask(good, observation())
        assert health(port)["clients"] == 1
        deaf.close_socket()
        thread.join(PATIENCE)


def _exchange(connection: ClientConnection, message: bytes) -> None:
    connection.send(message)
    connection.recv(PATIENCE)


def _flood(connection: ClientConnection, request: bytes) -> None:
    try:
        while True:
            connection.send(request)
    except ConnectionClosed:
        pass


class Slow:
    """Notes how many requests it is given together; waits for a signal first."""

    def __init__(self) -> None:
        self.metadata = {"server": "robot-rl"}
        self.go = threading.Event()
        self.checked = 0
        self.batches: list[int] = []
        self.waits = False
        self.error: Exception = RuntimeError("unlucky")
        """What the number 13 leads to."""

    def check(self, request: dict[str, Any]) -> Query:
        self.checked += 1
        return Query({}, 1, None, int(request["number"]), bulk=False)

    def infer(self, queries: Sequence[Query]) -> list[dict[str, Any]]:
        assert self.go.wait(PATIENCE)
        self.batches.append(len(queries))
        if any(query.seed == 13 for query in queries):
            raise self.error
        return [{"number": query.seed} for query in queries]


def test_requests_that_wait_are_answered_together_and_each_gets_its_own() -> None:
    slow = Slow()
    with serving(slow) as port:
        answers: dict[int, int] = {}

        def one(number: int) -> None:
            with client(port) as connection:
                answers[number] = ask(connection, {"number": number})["number"]

        threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + PATIENCE
        while slow.checked < 8 and time.monotonic() < end:
            time.sleep(0.01)
        slow.go.set()
        for thread in threads:
            thread.join(PATIENCE)
        assert answers == {number: number for number in range(8)}
        assert sum(slow.batches) == 8
        assert max(slow.batches) > 1


@pytest.mark.parametrize("kind", [RuntimeError, PolicyRefused])  # the second is another server's answer
def test_a_request_that_fails_costs_those_that_were_computed_with_it_nothing(kind: type[Exception]) -> None:
    slow = Slow()
    slow.error = kind("unlucky")
    with serving(slow) as port:
        answers: dict[int, str | int] = {}

        def one(number: int) -> None:
            with client(port) as connection:
                connection.send(encode({"number": number}))
                reply = connection.recv(PATIENCE)
                answers[number] = reply if isinstance(reply, str) else decode(reply)["number"]

        threads = [threading.Thread(target=one, args=(number,)) for number in (1, 13, 4)]
        for thread in threads:
            thread.start()
        eventually(lambda: slow.checked == 3, "all are waiting")
        slow.go.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert answers == {1: 1, 13: f"the policy failed: {kind.__name__}: unlucky", 4: 4}


def test_a_check_that_waits_for_another_server_holds_up_no_other_client() -> None:
    class Asking(Slow):
        def check(self, request: dict[str, Any]) -> Query:
            if request["number"] == 1:
                assert self.go.wait(PATIENCE)
            return super().check(request)

        def infer(self, queries: Sequence[Query]) -> list[dict[str, Any]]:
            return [{"number": query.seed} for query in queries]

    asking = Asking()
    asking.waits = True
    with serving(asking) as port, client(port) as held, client(port) as other:
        held.send(encode({"number": 1}))
        assert ask(other, {"number": 4})["number"] == 4
        assert health(port)["clients"] == 2
        asking.go.set()
        reply = held.recv(PATIENCE)
        assert isinstance(reply, bytes)
        assert decode(reply)["number"] == 1


def test_it_ends_while_a_request_is_answered() -> None:
    slow = Slow()
    server = PolicyServer(slow, Listen(port=0))  # type: ignore[arg-type]
    with client(server.start()) as connection:
        connection.send(encode({"number": 1}))
        connection.send(encode({"number": 2}))
        eventually(lambda: slow.checked > 0, "a request waits")
        closing = threading.Thread(target=server.close)
        closing.start()
        # Not told anything: a client that is only disconnected asks again, until its time is over.
        with pytest.raises(ConnectionClosed):
            connection.recv(PATIENCE)
        slow.go.set()
        closing.join(PATIENCE)
        assert not closing.is_alive()


def test_when_the_policy_fails_the_client_is_told_and_the_server_goes_on() -> None:
    slow = Slow()
    slow.go.set()
    with serving(slow) as port:
        with client(port) as unlucky:
            unlucky.send(encode({"number": 13}))
            assert unlucky.recv(PATIENCE) == "the policy failed: RuntimeError: unlucky"
            with pytest.raises(ConnectionClosed):
                unlucky.recv(PATIENCE)
        with client(port) as other:
            assert ask(other, {"number": 4})["number"] == 4


def test_a_token_is_asked_for_and_web_pages_are_refused() -> None:
    with serving(token="secret") as port:
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Api-Key wrong"}, 401),
            ({"Authorization": "Api-Key secret", "Origin": "http://evil.example"}, 403),
        ):
            with pytest.raises(InvalidStatus) as refused, client(port, additional_headers=headers):
                pass
            assert refused.value.response.status_code == status
        with client(port, additional_headers={"Authorization": "Api-Key secret"}) as connection:
            assert "actions" in ask(connection, observation())


def test_only_so_many_clients_are_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_CLIENTS", 1)
    with serving() as port, client(port) as first:
        with pytest.raises(InvalidStatus) as refused, client(port):
            pass
        assert refused.value.response.status_code == 503
        assert "actions" in ask(first, observation())
