"""lerobot's own policies, served: LEROBOT_PYTHON names an interpreter that has it (docs/serving.md)."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_rl.policy_client.codec import MessageError
from robot_rl.policy_server.lerobot_inference import LeRobotInference
from robot_rl.policy_server.lerobot_process import LeRobotProcess
from robot_rl.policy_server.server import Listen, PolicyServer
from robot_rl.runs import list_checkpoints
from tests.conftest import SMALL_RL, RunCommand
from tests.robot_rl.policy_server.openpi_client import run_openpi_client
from tests.robot_rl.policy_server.test_serve_command import serve

PYTHON = os.environ.get("LEROBOT_PYTHON", sys.executable)
SCRIPT = Path(__file__).with_name("in_lerobot.py")
KINDS = ("act", "act_state", "ddim", "ddim_state", "ddpm", "smolvla", "smolvla_bf16")
WITH_NOISE = {"ddim": (8, 7), "ddim_state": (8, 7), "smolvla": (6, 8), "smolvla_bf16": (6, 8)}
PROMPT = "lift the cube"

pytestmark = pytest.mark.full


@cache
def _has_lerobot() -> bool:
    return subprocess.run([PYTHON, "-c", "import lerobot"], capture_output=True, check=False).returncode == 0


def in_lerobot(*arguments: object) -> None:
    command = [PYTHON, str(SCRIPT), *map(str, arguments)]
    run = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a small policy of a kind, made by lerobot."""
    if not _has_lerobot():
        pytest.skip(f"{PYTHON} has no lerobot: see docs/serving.md, and set LEROBOT_PYTHON")
    folder = tmp_path_factory.mktemp("lerobot")

    @cache
    def make(kind: str) -> Path:
        (folder / kind).mkdir()
        in_lerobot("make", kind, folder / kind / "pretrained_model")
        return folder / kind / "pretrained_model"

    return make


@contextmanager
def started(directory: Path) -> Iterator[LeRobotInference]:
    process = LeRobotProcess(directory, PYTHON, "cpu")
    try:
        yield LeRobotInference(process, directory, 0)
    finally:
        process.close()


def observations(served: LeRobotInference, rows: int) -> dict[str, np.ndarray]:
    """Random observations [B, To, …]."""
    seen, random = served.metadata["observation"], np.random.default_rng(0)
    lead = (rows, seen["obs_steps"])
    found = {
        name: random.normal(size=(*lead, *shape)).astype(np.float32)
        for name, shape in seen["numbers"].items()
    }
    for name, shape in seen["images"].items():
        found[name] = random.integers(0, 256, (*lead, *shape), dtype=np.uint8)
    return found


def infer(served: LeRobotInference, *requests: dict[str, Any]) -> list[dict[str, Any]]:
    return served.infer([served.check({**request, "prompt": PROMPT}) for request in requests])


@pytest.mark.parametrize("kind", KINDS)
def test_a_served_chunk_is_lerobots_own(kind: str, saved: Callable[[str], Path], tmp_path: Path) -> None:
    directory = saved(kind)
    with started(directory) as served:
        obs = observations(served, 3)
        np.savez(tmp_path / "obs.npz", **obs)
        in_lerobot("ask", directory, tmp_path / "obs.npz", PROMPT, 5, tmp_path / "chunks.npy")
        expected = np.load(tmp_path / "chunks.npy")
        singles = [{name: array[row] for name, array in obs.items()} for row in range(3)]
        found = [infer(served, {**single, "__seed__": 5})[0]["actions"] for single in singles]
        assert list(found[0].shape) == served.metadata["action"]["shape"]
        assert np.ptp(expected) > 0.05
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5)
        assert served.metadata["noise"] == (list(WITH_NOISE[kind]) if kind in WITH_NOISE else None)
        assert served.metadata["deterministic"] is kind.startswith("act")


@pytest.mark.parametrize("kind", ["act", "ddim", "smolvla"])
def test_a_batch_is_answered_as_its_observations_alone(kind: str, saved: Callable[[str], Path]) -> None:
    with started(saved(kind)) as served:
        rows = 70  # more than in one pass
        obs = observations(served, rows)
        shape, given = WITH_NOISE.get(kind), {}
        if shape:
            given = {"__noise__": np.random.default_rng(1).normal(size=(rows, 1, *shape)).astype(np.float32)}
        (batch,) = infer(served, {**obs, **given, "__batch__": rows})
        picked = [0, 1, rows - 1]
        alone = [
            {
                **{name: array[row] for name, array in obs.items()},
                **{name: array[row] for name, array in given.items()},
            }
            for row in picked
        ]
        for row, reply in zip(picked, infer(served, *alone), strict=True):
            np.testing.assert_allclose(reply["actions"], batch["actions"][row], atol=1e-4)


@pytest.mark.parametrize("kind", ["ddim", "smolvla"])
def test_noise_decides_the_actions(kind: str, saved: Callable[[str], Path]) -> None:
    with started(saved(kind)) as served:
        single = {name: array[0] for name, array in observations(served, 1).items()}
        noise = np.random.default_rng(1).normal(size=(2, *WITH_NOISE[kind])).astype(np.float32)
        asked = {**single, "__noise__": noise, "__return_samples__": True}
        both, again = infer(served, asked)[0], infer(served, asked)[0]
        np.testing.assert_array_equal(both["samples"], again["samples"])
        assert np.abs(both["samples"][0] - both["samples"][1]).max() > 1e-2
        (first,) = infer(served, {**single, "__noise__": noise[1]})
        np.testing.assert_allclose(first["actions"], both["samples"][1], atol=1e-5)


def test_instructions_reach_a_vision_language_policy(saved: Callable[[str], Path]) -> None:
    with started(saved("smolvla")) as served:
        single = {name: array[0] for name, array in observations(served, 1).items()}
        queries = [served.check({**single, "__seed__": 0, "prompt": text}) for text in ("lift", "push it")]
        lift, push = served.infer(queries)
        assert np.abs(lift["actions"] - push["actions"]).max() > 1e-4
        with pytest.raises(MessageError, match="prompt is missing"):
            served.check(single)
        with pytest.raises(MessageError, match=r"unknown key 'observation\.images\.side'"):
            served.check({**single, "prompt": "", "observation.images.side": np.zeros(3, np.uint8)})


def test_openpis_own_client_is_served(saved: Callable[[str], Path], tmp_path: Path) -> None:
    program = (
        "seen = about['observation']\n"
        "obs = {name: np.ones(shape, np.float32) for name, shape in seen['numbers'].items()}\n"
        "obs |= {name: np.ones(shape, np.uint8) for name, shape in seen['images'].items()}\n"
        "broker = ActionChunkBroker(policy, about['action']['execute'])\n"
        "steps = np.stack([broker.infer(obs)['actions'] for _ in range(2)])\n"
        "chunk = policy.infer(obs)['actions']\n"
        "assert chunk.shape == tuple(about['action']['shape']) and (steps == chunk[:2]).all()\n"
        "try:\n    policy.infer({**obs, 'observation.images.side': obs['observation.images.front']})\n"
        "except RuntimeError as error:\n    assert 'unknown key' in str(error)\n"
    )
    process = serve(f"policy={saved('act')}", f"python={PYTHON}", "address=ws://127.0.0.1:0")
    run_openpi_client(tmp_path, process, program)


@pytest.mark.parametrize(
    ("kind", "method"), [("act_state", "residual"), ("ddim_state", "dsrl"), ("ddim_state", "expo")]
)
def test_a_served_policy_is_the_base_of_a_run(
    kind: str, method: str, saved: Callable[[str], Path], tmp_path: Path, robot_rl: RunCommand
) -> None:
    with started(saved(kind)) as served:
        server = PolicyServer(served, Listen(port=0))
        mapping = (
            "base=remote",
            f"base.url=ws://127.0.0.1:{server.start()}",
            "base.timeout=60",
            "base.state={observation.state: [robot0_eef_pos], observation.environment_state: "
            "[cube_pos, cube_quat, gripper_to_cube_pos]}",
            "base.execute=4",
            "base.action_units=normalized",
            "base.action_mode=delta",
            "base.action_frame=base",
            "base.gripper=[-1,1]",
        )
        options = (
            *SMALL_RL,
            "method.demo_ratio=0",
            "method.steps=24",
            "method.warmup_steps=8",
            "task.horizon=10",
        )
        try:
            robot_rl("train", f"method={method}", *options, *mapping, f"runs_dir={tmp_path}", "name=x")
            robot_rl("eval", f"policy={tmp_path / 'x'}", "episodes=1")
        finally:
            server.close()
    assert list_checkpoints(tmp_path / "x" / "checkpoints")
