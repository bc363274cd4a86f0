"""Image tasks: no pose of an object reaches a policy through environment, dataset, replay or server."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr

from robot_rl.assets import asset_path
from robot_rl.cli.compose import load_group
from robot_rl.data.dataset import Dataset
from robot_rl.data.demonstrations import demonstrations_to_replay
from robot_rl.envs.external.simulators import simulator_of
from robot_rl.envs.task import TaskConfig
from robot_rl.errors import UserError
from robot_rl.factory import make_robosuite_env
from robot_rl.methods.method import AgentContext, ReplayContent
from robot_rl.methods.replay_fields import replay_fields
from robot_rl.policies.bases.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.policies.nets.encoder import EncoderSpec
from robot_rl.policy_client.codec import MessageError
from robot_rl.policy_server.inference import PolicyInference
from tests.conftest import RunCommand

MEASURED = re.compile(r"robot\d_(eef_pos|eef_quat|gripper_qpos)")
SIZE = [32, 32]
CONFIGS = {
    path.stem: load_group("task", path.stem, TaskConfig)
    for path in asset_path("configs", "task").glob("*.yaml")
}
IMAGE_TASKS = {name: task for name, task in CONFIGS.items() if task.cameras and not simulator_of(task.env)}


def test_tasks_of_the_goals_have_an_image_variant() -> None:
    assert {"lift_image", "can_image"} <= IMAGE_TASKS.keys()


@pytest.mark.parametrize("name", sorted(IMAGE_TASKS))
def test_state_is_what_a_robot_measures(name: str) -> None:
    task = IMAGE_TASKS[name]
    assert all(MEASURED.fullmatch(key) for key in task.state_keys)
    env = make_robosuite_env(replace(task, image_size=SIZE))
    obs, _ = env.reset(seed=0)
    images = {f"images.{camera}" for camera in task.cameras}
    assert obs.keys() - {"instruction"} == {"state", *images}
    measured = [env.raw[key].astype(np.float32) for key in task.state_keys]
    assert np.array_equal(obs["state"], np.concatenate(measured))
    env.close()


def test_object_poses_reach_no_policy(tmp_path: Path, robot_rl: RunCommand) -> None:
    """A dataset stores them for playback; with other values of them a replay holds the same."""
    task = IMAGE_TASKS["lift_image"]
    robot_rl("collect", "task=lift_image", f"task.image_size={SIZE}", f"data={tmp_path / 'd'}", "episodes=1")
    dataset = Dataset(tmp_path / "d")
    spec = dataset.observation_spec
    assert all(MEASURED.fullmatch(key) for key in spec.state_keys)
    torch.manual_seed(0)
    policy = DiffusionPolicy(
        DiffusionConfig(width=16, depth=1), spec.state_size, len(dataset.action_spec), spec.cameras, (32, 32)
    )
    encoder = EncoderSpec(spec.state_size, kind="base", features=policy.feature_size, feature_copies=2)
    context = AgentContext(policy, encoder, dataset.action_spec, 0, torch.device("cpu"))
    fields = replay_fields(ReplayContent(("base",)), context, SIZE)
    before = demonstrations_to_replay(dataset, policy, 0, fields).data

    data = zarr.open_group(tmp_path / "d", mode="r+")["data"]
    hidden = [key for key in data if key.startswith(("cube", "gripper_to_cube", "sim_state"))]
    assert len(hidden) >= 3
    for key in hidden:
        data[key][:] = 7
    after = demonstrations_to_replay(Dataset(tmp_path / "d"), policy, 0, fields).data
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert torch.equal(value, after[name]), name

    served = PolicyInference(policy, {**dataset.environment, "control_freq": task.control_freq}, 0)
    assert all(MEASURED.fullmatch(key) for key in served.metadata["observation"]["state"]["keys"])
    images = {f"images.{camera}": np.zeros((32, 32, 3), np.uint8) for camera in spec.cameras}
    request = {"state": np.zeros(spec.state_size, np.float32), **images}
    served.check(request)
    with pytest.raises(MessageError, match="unknown key 'cube_pos'"):
        served.check({**request, "cube_pos": np.zeros(3, np.float32)})


@pytest.mark.full
def test_a_dataset_or_a_base_with_privileged_keys_is_refused(tmp_path: Path, robot_rl: RunCommand) -> None:
    seen = [f"task.image_size={SIZE}", "task.cameras=[agentview]"]
    measured, privileged = tmp_path / "measured", tmp_path / "privileged"
    small = ["method=bc", "base=diffusion", "base.width=16", "base.depth=1", "method.steps=1", "device=cpu"]
    for task, path in (("lift_image", measured), ("lift", privileged)):
        given = [f"task={task}", *seen, f"data={path}"]
        robot_rl("collect", *given, "episodes=1")
        robot_rl("train", *small, *given, f"runs_dir={tmp_path}", f"name=base_{path.name}")
    run = ["method=residual_chunk", "task=lift_image", *seen, "method.encoder=base", f"runs_dir={tmp_path}"]
    for base, data, named in (
        ("base_measured", privileged, "dataset"),
        ("base_privileged", measured, "base"),
    ):
        with pytest.raises(UserError, match=f"^{named}.*observation_spec.state_keys.*'cube_pos'") as caught:
            robot_rl("train", *run, f"base={tmp_path / base}", f"data={data}", "name=rl", "device=cpu")
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "rl").exists()
