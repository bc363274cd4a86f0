"""A LeRobot policy's process: its messages, its end, and directories that cannot be served."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import ClientConnection, connect

from robot_rl.errors import UserError
from robot_rl.policy_client.codec import decode, encode
from robot_rl.policy_server.lerobot_process import (
    LeRobotProcess,
    PolicyProcessLost,
    check_interpreter,
    fingerprint,
    is_lerobot,
)
from robot_rl.policy_server.lerobot_worker import BrokenMessage, receive, send
from tests.conftest import RunCommand
from tests.robot_rl.policy_server.stand_in import (
    ACTION,
    CAMERA,
    CLOSES,
    DIES,
    FAILS,
    NO_MESSAGE,
    SIZE,
    SLEEPS,
    STATE,
    STEPS,
    WRONG_SHAPE,
    interpreter,
    saved,
)

PATIENCE = 60.0


def observation(first: float = 1.0, rows: int = 1) -> dict[str, np.ndarray]:
    state = np.zeros((rows, 1, STATE), np.float32)
    state[:, :, 0] = first
    return {"observation.state": state, CAMERA: np.full((rows, 1, *SIZE, 3), 2, np.uint8)}


@pytest.fixture
def process(tmp_path: Path) -> Iterator[LeRobotProcess]:
    process = LeRobotProcess(saved(tmp_path / "policy"), interpreter(tmp_path))
    yield process
    process.close()


# ---- messages --------------------------------------------------------------------------------------------


def test_a_message_arrives_as_it_was_sent() -> None:
    stream = io.BytesIO()
    arrays = {"a": np.arange(6, dtype="<f4").reshape(2, 3)[:, ::-1], "b": np.zeros((0, 3), np.uint8)}
    send(stream, {"seed": 3}, arrays)
    send(stream, {"error": "x"})
    stream.seek(0)
    header, found = receive(stream) or ({}, {})
    assert header == {"seed": 3}
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    assert receive(stream) == ({"error": "x"}, {})
    assert receive(stream) is None


def framed(header: Any) -> bytes:
    packed = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(packed).to_bytes(4, "little") + packed


@pytest.mark.parametrize(
    "data",
    [
        b"\x01",
        b"\xff\xff\xff\xff",
        framed({"arrays": []})[:-1],
        framed(b"\x80"),
        framed(b"[" * 9999),
        framed([]),
        framed({}),
        framed({"arrays": [{"name": "a", "dtype": "<f4"}]}),
        framed({"arrays": [{"name": "a", "dtype": "|O8", "shape": [1]}]}) + bytes(8),
        framed({"arrays": [{"name": "a", "dtype": "<f4", "shape": [-1]}]}),
        framed({"arrays": [{"name": "a", "dtype": "<f4", "shape": [True]}]}) + bytes(4),
        framed({"arrays": [{"name": "a", "dtype": "<f4", "shape": [10**9, 10**9]}]}),
        framed({"arrays": [{"name": "a", "dtype": "<f4", "shape": [2]}]}) + bytes(7),
    ],
)
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(BrokenMessage):
        receive(io.BytesIO(data))


# ---- the process -----------------------------------------------------------------------------------------


def test_a_process_answers_and_goes_on_after_a_request_that_fails(process: LeRobotProcess) -> None:
    assert process.policy.shape == (STEPS, ACTION)
    np.testing.assert_array_equal(
        process.predict(observation(rows=2)), np.full((2, STEPS, ACTION), 3, np.float32)
    )
    with pytest.raises(RuntimeError, match="ValueError: it fails"):
        process.predict(observation(FAILS))
    assert process.predict(observation(5.0))[0, 0, 0] == 7
    with pytest.raises(RuntimeError, match="not finite"):
        process.predict(observation(np.nan))
    process.check()


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (DIES, "was ended by SIGKILL"),
        (WRONG_SHAPE, "actions of another shape"),
        (NO_MESSAGE, "the length of a message cannot be"),
        (CLOSES, "closed its output"),
    ],
)
def test_a_process_that_ends_or_talks_nonsense_is_lost(
    process: LeRobotProcess, first: float, words: str
) -> None:
    for obs, what in ((observation(first), words), (observation(), "is lost")):
        with pytest.raises(PolicyProcessLost, match=what) as caught:
            process.predict(obs)
        assert "\n" not in str(caught.value)
    with pytest.raises(PolicyProcessLost):
        process.check()


def test_a_policy_that_cannot_be_loaded_is_told_in_lerobots_words(tmp_path: Path) -> None:
    python = interpreter(tmp_path)
    with pytest.raises(UserError, match="cannot be loaded by lerobot: OSError: no tokenizer"):
        LeRobotProcess(saved(tmp_path / "a", error="OSError: no\ntokenizer"), python)
    for name, wrong in (
        ("shape", [0, 2]),
        ("obs_steps", 10**9),
        ("features", {"a\n": ["STATE", [3]]}),
        ("more", 1),
        ("device", None),
    ):
        with pytest.raises(PolicyProcessLost, match="describes itself in another way"):
            LeRobotProcess(saved(tmp_path / name, **{name: wrong}), python)
    with pytest.raises(UserError, match="no colour image"):
        LeRobotProcess(saved(tmp_path / "b", features={CAMERA: ["VISUAL", [1, 8, 8]]}), python)


def test_a_policys_process_dies_with_the_one_that_started_it(tmp_path: Path) -> None:
    directory = saved(tmp_path / "policy")
    program = (
        "import sys, time\nfrom pathlib import Path\n"
        "from robot_rl.policy_server.lerobot_process import LeRobotProcess\n"
        "print(LeRobotProcess(Path(sys.argv[1]), sys.argv[2]).pid, flush=True)\ntime.sleep(600)\n"
    )
    command = [sys.executable, "-c", program, str(directory), interpreter(tmp_path)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert parent.stdout
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    end = time.monotonic() + PATIENCE
    while _runs(pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


# ---- directories and interpreters ------------------------------------------------------------------------


def test_a_directory_of_lerobot_is_recognised(tmp_path: Path) -> None:
    directory = saved(tmp_path / "policy")
    assert is_lerobot(directory)
    first = fingerprint(directory)
    (directory / "train_config.json").write_text("{}")
    assert fingerprint(directory) == first
    (directory / "model.safetensors").write_bytes(b"other weights")
    assert fingerprint(directory) != first
    for text in ("[]", "{}", '{"type": 1}', "\x80", "[" * 9999):
        (directory / "config.json").write_text(text)
        assert not is_lerobot(directory)
    assert not is_lerobot(tmp_path / "nowhere")


def test_an_interpreter_without_lerobot_is_refused() -> None:
    with pytest.raises(UserError, match=r"has no lerobot: install it there \(.* -m pip install lerobot\)"):
        check_interpreter(sys.executable)
    with pytest.raises(UserError, match="python=/nowhere cannot be run"):
        check_interpreter("/nowhere")


def test_what_is_missing_costs_one_line(tmp_path: Path, robot_rl: RunCommand) -> None:
    directory, other = saved(tmp_path / "policy"), tmp_path / "other"
    other.mkdir()
    cases = [
        ((f"policy={directory}",), "is a policy of LeRobot: give python=…"),
        ((f"policy={directory}", "python=/nowhere"), "python=/nowhere cannot be run"),
        ((f"policy={directory}", f"python={interpreter(other, has_lerobot=False)}"), "has no lerobot"),
        ((f"policy={other}", "python=python3"), "is none: give its folder pretrained_model"),
    ]
    old = saved(tmp_path / "old")
    (old / "policy_postprocessor.json").unlink()
    cases += [((f"policy={old}", "python=python3"), "has no policy_postprocessor.json: it was saved")]
    for arguments, words in cases:
        with pytest.raises(UserError, match=words) as caught:
            robot_rl("serve", *arguments, "address=ws://127.0.0.1:0")
        assert "\n" not in str(caught.value)


# ---- the server ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waiting", [pytest.param(False, marks=pytest.mark.full), True])
def test_when_the_process_is_killed_clients_are_told_and_the_server_ends(
    tmp_path: Path, waiting: bool
) -> None:
    directory, python = saved(tmp_path / "policy"), interpreter(tmp_path)
    arguments = [f"policy={directory}", f"python={python}", "address=ws://127.0.0.1:0"]
    server = subprocess.Popen(
        [sys.executable, "-m", "robot_rl", "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout
        assert server.stderr
        port = int(server.stdout.readline().rsplit(":", 1)[1])
        with connect(f"ws://127.0.0.1:{port}", compression=None) as client:
            assert decode(client.recv(PATIENCE))["policy"] == "adds"  # type: ignore[arg-type]
            if waiting:
                request = {name: array[0, 0] for name, array in observation(SLEEPS).items()}
                client.send(encode(request))
            (child,) = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
            os.kill(int(child), signal.SIGKILL)
            said = client.recv(PATIENCE)
            assert isinstance(said, str)
            assert "was ended by SIGKILL" in said
            with pytest.raises(ConnectionClosedError) as closed:
                _read_all(client)
            assert closed.value.rcvd
            assert closed.value.rcvd.code == 1011
        assert server.wait(PATIENCE) == 2
        error = server.stderr.read()
        assert error.startswith("robot-rl: the process of ")
        assert error.count("\n") == 1
    finally:
        server.kill()
        server.wait()


def _read_all(client: ClientConnection) -> None:
    while True:
        client.recv(PATIENCE)
