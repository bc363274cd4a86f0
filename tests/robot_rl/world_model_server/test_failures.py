"""What ends the use of a served world model, in one line and with the run saved."""

import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import zmq

from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.security import make_client_keys
from robot_rl.imagination.config import ImaginationConfig
from robot_rl.imagination.world_model import ChunkStart, Prediction, WorldModelLost
from robot_rl.world_model_server import client
from tests.hardware.ports import free_address
from tests.robot_rl.imagination.point_task import CHUNK, ENVIRONMENT, Oracle, PointRun
from tests.robot_rl.world_model_server.served_models import connect, served, served_elsewhere, state_model
from tests.robot_rl.world_model_server.test_conformance import chunk_start, episodes

SMALL = ImaginationConfig(refit_every=5, pool=10, branches=64)
FAMILIAR = ENVIRONMENT["action_spec"]


class Odd(Oracle):
    """Answers as a test wants it to."""

    def __init__(self, **changes: torch.Tensor) -> None:
        self.changes = changes

    def step(
        self,
        start: ChunkStart,
        chunk: torch.Tensor,
        member: torch.Tensor,
        length: torch.Tensor | None = None,
    ) -> Prediction:
        return replace(super().step(start, chunk, member, length), **self.changes)


class Failing(Oracle):
    def fit(self, *_: Any) -> dict[str, float]:
        raise RuntimeError("no memory\nfor so many networks")


class Unsaved(Oracle):
    resumable = False

    def checkpoint(self) -> dict[str, Any]:
        raise NotImplementedError


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path / 'model'}"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_GONE_AFTER", 0.5)


def refusal(address: str, **options: Any) -> str:
    with pytest.raises(ValueError, match=r"the world model at") as caught:
        connect(address, **options)
    text = str(caught.value)
    assert address in text
    assert "\n" not in text
    return text


def test_a_missing_server_is_an_error_in_one_line(address: str, hasty: None) -> None:
    assert "there is no server: start it" in refusal(address)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"environment": {**ENVIRONMENT, "task": "lift"}}, "task was point, here it is lift"),
        ({"environment": {**ENVIRONMENT, "action_spec": FAMILIAR[:1]}}, "action_spec was"),
        ({"environment": {**ENVIRONMENT, "action_spec": [FAMILIAR[0]] * 2}}, "action_spec was"),
        ({"chunk": CHUNK + 1}, f"predicts chunks of {CHUNK} steps, the run executes {CHUNK + 1}"),
    ],
)
def test_a_model_of_another_task_or_action_is_refused(
    change: Mapping[str, Any], message: str, address: str
) -> None:
    with served(Oracle(), address):
        assert message in refusal(address, **change)


def test_a_model_with_another_normalisation_is_refused_when_a_run_goes_on(address: str) -> None:
    with served(state_model(), address):
        model = connect(address)
        model.fit(episodes(), 0, 2)
        saved = model.checkpoint()
        with pytest.raises(WorldModelLost, match="normalises states in another way"):
            model.restore({**saved, "scale": 2 * saved["scale"]})
        model.close()


def test_a_model_serves_one_run_at_a_time(address: str) -> None:
    with served(Oracle(), address):
        first = connect(address)
        assert "another run uses this world model" in refusal(address)
        first.close()
        connect(address).close()


def test_a_run_that_died_makes_room_for_the_next(address: str) -> None:
    with served(Oracle(), address):
        first = connect(address)
        # As when its process is killed: no goodbye.
        first._context.destroy(linger=0)
        until = time.monotonic() + 30
        while True:
            try:
                connect(address).close()
                return
            except WorldModelLost:
                assert time.monotonic() < until


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"states": torch.full((3, CHUNK, 2), torch.nan)}, "states is not finite"),
        ({"disagreement": torch.full((3, 2), torch.inf)}, "disagreement is not finite"),
        ({"states": torch.full((3, CHUNK, 2), 3e38)}, "1,000,000 standard deviations or more"),
        ({"states": torch.zeros(3, CHUNK + 1, 2)}, "states is <f4"),
        ({"states": torch.zeros(3, CHUNK, 2, dtype=torch.int64)}, "states is <i8"),
        ({"success_high": torch.full((3, CHUNK), 2.0)}, "not bounds of a probability"),
        ({"disagreement": -torch.ones(3, 2)}, "its disagreement is negative"),
    ],
)
def test_answers_that_are_no_prediction_are_refused(
    changes: dict[str, torch.Tensor], message: str, address: str
) -> None:
    with served(Odd(**changes), address):
        model = connect(address)
        with pytest.raises(WorldModelLost, match=message):
            model.step(*chunk_start(3))
        model.close()


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("chunk", torch.full((3, CHUNK, 2), torch.nan), "chunk is not finite"),
        ("chunk", torch.zeros(3, CHUNK + 1, 2), "chunk is <f4"),
        ("member", torch.full((3,), 9), "member is not in 0 to 1"),
        ("length", torch.zeros(3, dtype=torch.int64), "length is not in 1 to"),
    ],
)
def test_questions_that_make_no_sense_do_not_reach_the_model(
    part: str, value: torch.Tensor, message: str, address: str
) -> None:
    begin, chunk, member = chunk_start(3)
    asked = {"start": begin, "chunk": chunk, "member": member, part: value}
    with served(Oracle(), address):
        model = connect(address)
        with pytest.raises(WorldModelLost, match=message):
            model.step(**asked)
        model.step(begin, chunk, member)
        model.close()


def test_a_failure_of_the_model_is_told_in_one_line_and_the_server_goes_on(
    address: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with served(Failing(), address):
        model = connect(address)
        with pytest.raises(WorldModelLost, match="the model failed: RuntimeError: no memory"):
            model.fit(episodes(), 0, 1)
        model.step(*chunk_start(3))
        model.close()
    assert "Traceback" in capfd.readouterr().err


def test_a_server_that_was_replaced_is_noticed(address: str) -> None:
    with served(Oracle(), address):
        model = connect(address)
        model.step(*chunk_start(3))
    with served(Oracle(), address), pytest.raises(WorldModelLost, match="was replaced during the run"):
        model.step(*chunk_start(3))
    model.close()


def test_a_slow_answer_ends_the_wait_at_the_time_limit(address: str) -> None:
    class Slow(Oracle):
        def fit(self, *_: Any) -> dict[str, float]:
            time.sleep(2)
            return {}

    with served(Slow(), address):
        model = connect(address)
        model._timeout = 0.2
        with pytest.raises(WorldModelLost, match=r"within 0.2 s: choose a larger imagination.timeout"):
            model.fit(episodes(), 0, 1)
        model.close()


def test_only_new_episodes_are_sent(address: str) -> None:
    class Counting(Oracle):
        seen: list[int] = []  # noqa: RUF012

        def fit(self, episodes: Any, newest: int, updates: int) -> dict[str, float]:
            self.seen = [*self.seen, len(episodes)]
            return {"sum": float(sum(episode.states.sum() for episode in episodes))}

    first, later = episodes(3), episodes(2, seed=1)
    with served(Counting(), address):
        model = connect(address)
        added: list[int] = []
        call = model._call
        model._call = lambda request, kind: (  # type: ignore[method-assign]
            added.append(len(getattr(request, "episodes", ()))) or call(request, kind)
        )
        model.fit(first, 0, 1)
        losses = model.fit([*first, *later], 2, 1)
        model.close()
    assert [count for count in added if count] == [3, 2]
    assert losses["sum"] == pytest.approx(float(sum(each.states.sum() for each in [*first, *later])))


def test_a_model_that_cannot_be_saved_serves_one_run_which_cannot_be_resumed(address: str) -> None:
    with served(Unsaved(), address):
        model = connect(address)
        assert not model.resumable
        model.fit(episodes(), 0, 1)
        with pytest.raises(WorldModelLost, match="cannot be saved, so this run cannot be resumed"):
            model.restore(model.checkpoint())
        model.close()
        assert "has learned in another run and cannot be reset" in refusal(address)


def test_noise_does_not_disturb_a_server(address: str) -> None:
    with served(Oracle(), address), zmq.Context() as context:
        socket = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.connect(parse(address).endpoint("ctrl"))
        for noise in (b"", b"\0" * 50, b"x" * 10_000):
            socket.send(noise)
            assert socket.poll(60_000)
            socket.recv()
        model = connect(address)
        model.step(*chunk_start(3))
        model.close()
        socket.close()


def test_a_server_on_a_network_needs_keys(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="can be reached by other machines and there are no keys"):
        connect("tcp://192.0.2.1:5550")
    keys = tmp_path / "keys"
    path = make_client_keys(keys, "run", "operator")
    address = free_address()
    with served(Oracle(), address, keys=keys):
        model = connect(address, keys=str(path))
        model.step(*chunk_start(3))
        model.close()


@pytest.mark.full
def test_a_run_whose_server_is_killed_is_saved_and_goes_on_with_another(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    with served_elsewhere("oracle", folder=tmp_path) as (process, addresses):
        run = PointRun(directory, steps=1200, imagination=SMALL, model=lambda _: connect(addresses["oracle"]))
        imagination = run.imagination
        assert imagination
        refit = imagination.refit

        def killed_in_the_third(step: int) -> None:
            if len(imagination.history) == 2:
                process.send_signal(signal.SIGKILL)
                process.wait()
            refit(step)

        imagination.refit = killed_in_the_third  # type: ignore[method-assign]
        with pytest.raises(WorldModelLost, match=r"there is no server.*; the run is saved up to here"):
            run.train()
    episodes_seen = len(imagination.episodes)
    ended = run.logger.path.read_text().count("train/success")
    assert episodes_seen == ended
    with served(Oracle(), addresses["oracle"]):
        resumed = PointRun(
            directory, steps=1200, imagination=SMALL, model=lambda _: connect(addresses["oracle"])
        ).train()
        assert resumed.imagination
        assert len(resumed.imagination.history) > 3
        assert len(resumed.imagination.episodes) == len(resumed.outcomes) > episodes_seen
        resumed.imagination.model.close()
