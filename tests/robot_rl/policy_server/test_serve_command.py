"""`robot-rl serve`: a saved policy is served until Ctrl-C, and mistakes cost one line."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from websockets.sync.client import connect

from robot_rl.policies.store import save_policy
from robot_rl.policy_client.codec import decode, encode
from tests.robot_rl.policy_server.openpi_client import run_openpi_client
from tests.robot_rl.policy_server.small_policies import STATE, environment, flow

PATIENCE = 120.0


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("policy")
    save_policy(flow(), directory, {"environment": environment()})
    return directory


def serve(*arguments: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "robot_rl", "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ},
    )


def test_a_saved_policy_is_served_until_ctrl_c(policy: Path) -> None:
    process = serve(f"policy={policy}", "address=ws://localhost:0", ROBOT_RL_TOKEN="secret")
    try:
        assert process.stdout
        line = process.stdout.readline()
        assert line.startswith(f"serving {policy} at ws://localhost:"), line
        port = int(line.rsplit(":", 1)[1])
        headers = {"Authorization": "Api-Key secret"}
        with connect(f"ws://127.0.0.1:{port}", additional_headers=headers, compression=None) as client:
            assert decode(client.recv(PATIENCE))["task"] == "small"  # type: ignore[arg-type]
            client.send(encode({"state": np.zeros(STATE, np.float32)}))
            assert "actions" in decode(client.recv(PATIENCE))  # type: ignore[arg-type]
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) in (0, 130)
        assert process.stderr
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("address=ws://0.0.0.0:0",), "can be reached by other machines"),
        (("address=wss://127.0.0.1:0",), "needs certificate="),
        (("address=wss://127.0.0.1:0", "certificate=nowhere.pem"), "certificate=nowhere.pem does not exist"),
        (("address=http://127.0.0.1:80",), "give ws://host:port"),
        (("address=ws://127.0.0.1:99999",), "give ws://host:port"),
        (("address=ws://127.0.0.1",), "give ws://host:port"),
    ],
)
def test_an_address_that_cannot_be_used_costs_one_line(
    policy: Path, arguments: tuple[str, ...], words: str, robot_rl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROBOT_RL_TOKEN", raising=False)
    with pytest.raises(Exception, match=words) as caught:
        robot_rl("serve", f"policy={policy}", *arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.full
def test_openpis_own_client_is_served(policy: Path, tmp_path: Path) -> None:
    program = (
        f"obs = {{'state': np.zeros({STATE}, np.float32), 'prompt': 'go', '__seed__': 0}}\n"
        "chunk = policy.infer(obs)['actions']\n"
        "assert list(chunk.shape) == list(about['action']['shape']), chunk.shape\n"
        "broker = ActionChunkBroker(policy, 2)\n"
        "steps = [broker.infer(obs)['actions'] for _ in range(2)]\n"
        "assert np.array_equal(np.stack(steps), chunk[:2])\n"
        "try:\n    policy.infer({})\n"
        "except RuntimeError as error:\n    assert 'state is missing' in str(error)\n"
    )
    run_openpi_client(tmp_path, serve(f"policy={policy}", "address=ws://127.0.0.1:0"), program)
