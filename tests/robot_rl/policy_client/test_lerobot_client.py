"""`base=remote` with a server of a LeRobot policy: its actions as declared, its noise, steps and batches."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.envs.instruction import encode_instruction
from robot_rl.policy_client.config import RemoteConfig
from robot_rl.policy_client.remote_base import RemoteBase, connect_base
from robot_rl.policy_server.lerobot_inference import LeRobotInference
from robot_rl.policy_server.server import Listen, PolicyServer
from tests.robot_rl.policy_client.policy_servers import stock
from tests.robot_rl.policy_client.test_openpi_client import ENVIRONMENT, MAPPING, observations
from tests.robot_rl.policy_server.small_policies import CAMERA
from tests.robot_rl.policy_server.stand_in import CAMERA as THEIRS
from tests.robot_rl.policy_server.stand_in import STEPS
from tests.robot_rl.policy_server.test_lerobot_inference import Process

NOISE = (3, 5)
STATE = {"observation.state": ["position", "opening"]}


class Small(Process):
    """The stand-in's sums, small enough to be actions in [-1, 1], and of the task's size."""

    def predict(self, obs: Any, *rest: Any) -> Any:
        return super().predict(obs, *rest).repeat(2, -1)[..., :3] / 1000


@contextmanager
def serving(directory: Path, **description: Any) -> Iterator[tuple[str, Small]]:
    process = Small(**{"shape": [STEPS, 3], **description})
    server = PolicyServer(LeRobotInference(process, directory, 0), Listen(port=0))  # type: ignore[arg-type]
    try:
        yield f"ws://127.0.0.1:{server.start()}", process
    finally:
        server.close()


def remote(url: str, environment: dict[str, Any] = ENVIRONMENT, **changes: Any) -> RemoteBase:
    mapping = {**MAPPING, "cameras": {CAMERA: THEIRS}, "state": STATE, "gripper": [-1.0, 1.0], "prompt": None}
    options = {**mapping, "action_units": "normalized", **changes}
    return connect_base(RemoteConfig(url, timeout=20, **options), environment)


def sums(obs: dict[str, torch.Tensor]) -> np.ndarray:
    """What the stand-in adds up of each observation [B]."""
    found = obs["state"].sum((1, 2)) + obs[f"images.{CAMERA}"][:, -1, 0, 0, 0]
    return found.numpy()


def test_a_batch_is_one_request_and_actions_are_those_of_the_mapping(tmp_path: Path) -> None:
    with serving(tmp_path) as (url, process):
        base = remote(url)
        assert (base.spec.horizon, base.spec.execute, base.spec.noise_shape) == (STEPS, 2, None)
        assert base.spec.deterministic
        obs, before = observations(5), len(process.seeds)
        chunk = base.sample(obs)
        assert len(process.seeds) == before + 1
        np.testing.assert_allclose(chunk.actions[:, 0, 0, 0], sums(obs) / 1000, rtol=1e-5)
        # In SI units the first dimension has a scale of 0.05 m.
        in_si = remote(url, action_units="si").sample(obs).actions
        np.testing.assert_allclose(in_si[:, 0, 0, 0], (sums(obs) / 50).clip(-1, 1), rtol=1e-5)


def test_the_run_draws_the_noise_of_a_policy_that_takes_some(tmp_path: Path) -> None:
    with serving(tmp_path, noise=NOISE) as (url, _):
        base = remote(url)
        assert base.spec.noise_shape == NOISE
        obs, generator = observations(2), torch.Generator().manual_seed(0)
        chunk = base.sample(obs, num_samples=3, generator=generator)
        assert chunk.noise is not None
        expected = (sums(obs)[:, None] + chunk.noise.sum((2, 3)).numpy()) / 1000
        np.testing.assert_allclose(chunk.actions[:, :, 0, 0], expected, rtol=1e-4)
        again = base.sample(obs, noise=chunk.noise, num_samples=3)
        assert torch.equal(again.actions, chunk.actions)


def test_more_chunks_than_a_server_takes_are_asked_for_in_parts(tmp_path: Path) -> None:
    samples = 40
    with serving(tmp_path, noise=NOISE) as (url, process):
        base, obs = remote(url), observations(250)
        noise, before = torch.randn(250, samples, *NOISE), len(process.seeds)
        assert base.sample(obs, noise=noise, num_samples=samples).actions.shape[:2] == (250, samples)
        assert len(process.seeds) == before + 3


def test_a_policy_that_draws_its_own_noise_gives_samples_in_one_request(tmp_path: Path) -> None:
    with serving(tmp_path, deterministic=False) as (url, process):
        base = remote(url)
        assert not base.spec.deterministic
        before = len(process.seeds)
        assert base.sample(observations(2), num_samples=3).actions.shape == (2, 3, STEPS, 3)
        assert len(process.seeds) == before + 1


def test_all_observation_steps_are_sent_oldest_first_with_each_rows_instruction(tmp_path: Path) -> None:
    told = {**ENVIRONMENT, "instructions": ["lift it", "leave it"]}
    with serving(tmp_path, obs_steps=2, prompt=True) as (url, process):
        base = remote(url, told)
        assert base.spec.obs_steps == 2
        texts = torch.from_numpy(np.stack([encode_instruction(text) for text in told["instructions"]]))
        obs = {name: torch.cat([value, value + 1], 1) for name, value in observations(2).items()}
        seen: list[Any] = []
        process.predict = lambda *given: seen.append(given) or Small.predict(process, *given)  # type: ignore
        base.sample({**obs, "instruction": texts[:, None].repeat(1, 2, 1)})
        (sent, prompts, _, _) = seen[0]
        assert prompts == ("lift it", "leave it")
        np.testing.assert_array_equal(sent["observation.state"], obs["state"].numpy())
        np.testing.assert_array_equal(sent[THEIRS], obs[f"images.{CAMERA}"].numpy())


def test_a_policy_that_reads_no_instruction_is_given_none(tmp_path: Path) -> None:
    told = {**ENVIRONMENT, "instructions": ["lift it", "leave it"]}
    with serving(tmp_path) as (url, _):
        assert not remote(url, told).spec.instruction
        with pytest.raises(ValueError, match=r"base\.prompt='lift': ws://.* serves a policy that reads none"):
            remote(url, told, prompt="lift")


def test_another_policy_at_the_same_address_is_noticed(tmp_path: Path) -> None:
    names = []
    for weights in (b"one", b"one", b"other"):
        (tmp_path / "model.safetensors").write_bytes(weights)
        with serving(tmp_path) as (url, _):
            names.append(bytes(remote(url).identity.tolist()))
    assert names[0] == names[1] != names[2]


def test_a_description_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with stock(lambda _: {}, {"server": "robot-rl/lerobot"}) as url:
        with pytest.raises(ValueError, match="describes itself in another way") as caught:
            remote(url)
        assert "\n" not in str(caught.value)
    with (
        serving(tmp_path) as (url, _),
        pytest.raises(ValueError, match=r"it says .*unknown key 'observation/state'"),
    ):
        remote(url, state={"observation/state": ["position"]})
