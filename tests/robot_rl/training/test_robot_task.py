"""A robot without a simulation of its task: its recordings become a policy that RL improves on it."""

import json
import shutil
from pathlib import Path

import pytest

from robot_rl.cli.main import main
from robot_rl.data.dataset import Dataset
from robot_rl.envs.robot_task import RobotTask
from robot_rl.errors import UserError
from robot_rl.saved_policies.loading import load_networks
from tests.conftest import SMALL_BASE, SMALL_RL, RunCommand
from tests.robot_rl.data.recorded import Motion, record
from tests.robot_rl.robot.deploy.test_deploy import serving

ALONE = ("hil=on", "hil.operator=none", "method.num_envs=1")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, robot_rl: RunCommand) -> Path:
    """Dataset of an arm of two joints."""
    folder = tmp_path_factory.mktemp("recorded")
    raw = record(folder / "x.raw", Motion(seconds=1.0), Motion(seconds=1.2))
    robot_rl("data derive", f"raw={raw}", f"out={folder / 'x.zarr'}", "name=stack", "cameras=[]")
    return folder / "x.zarr"


def bc(data: Path, runs: Path, *more: str) -> tuple[str, ...]:
    common = ("method=bc", f"data={data}", f"runs_dir={runs}", "threads=1", "method.steps=2", *SMALL_BASE)
    return ("train", *common, *more)


def test_a_policy_learns_from_the_recordings_of_a_robot(
    recorded: Path, tmp_path: Path, robot_rl: RunCommand
) -> None:
    robot_rl(*bc(recorded, tmp_path, "task=robot"))
    base, meta = load_networks(tmp_path / "robot_bc_s0")
    dataset = Dataset(recorded)
    assert meta["environment"] == dataset.environment
    assert base.spec.state_size == dataset.observation_spec.state_size
    # It goes on, as other runs.
    robot_rl(*bc(recorded, tmp_path, "task=robot", "method.steps=3"))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("method=bc",), "is of the robot .*, and task=lift is simulated: add task=robot"),
        (("method=bc", "task=robot", "data=null"), "add data="),
        (("method=expo", "task=robot"), "no simulation to act in: add hil=on"),
        (
            ("method=expo", "task=robot", "hil=on", "hil.operator=scripted", "method.num_envs=1"),
            "scripted is an expert of simulated tasks",
        ),
        (
            (
                "method=expo",
                "task=robot",
                "hil=on",
                "hil.operator=none",
                "method.num_envs=1",
                "eval_every=10",
            ),
            "eval_every evaluates in simulation",
        ),
    ],
)
def test_what_needs_a_simulation_is_refused(
    recorded: Path, tmp_path: Path, robot_rl: RunCommand, more: tuple[str, ...], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        robot_rl("train", f"data={recorded}", f"runs_dir={tmp_path}", *more)
    assert not list(tmp_path.iterdir())


def test_a_simulated_tasks_data_are_no_robots(
    demonstrations: Path, recorded: Path, tmp_path: Path, robot_rl: RunCommand
) -> None:
    with pytest.raises(UserError, match="these are of task=lift: choose it"):
        robot_rl(*bc(demonstrations, tmp_path, "task=robot"))
    robot_rl(*bc(recorded, tmp_path, "task=robot"))
    with pytest.raises(UserError, match="is of a real robot, and not simulated"):
        robot_rl("eval", f"policy={tmp_path / 'robot_bc_s0'}")
    environment = Dataset(recorded).environment
    with pytest.raises(ValueError, match="a whole number of steps"):
        RobotTask({**environment, "control_freq": 12.5})


def test_rl_on_a_robot_is_for_the_instruction_that_it_is_given(recorded: Path) -> None:
    environment = {**Dataset(recorded).environment, "instructions": ["open the drawer", "close it"]}
    assert RobotTask(environment).task.instructions == ["open the drawer", "close it"]
    one = RobotTask(environment, "close it")
    assert one.task.instructions == one.describe()["instructions"] == ["close it"]


@pytest.mark.full
def test_recordings_of_a_served_arm_become_a_policy_that_rl_improves_on_it(
    base_run: Path, robot_rl: RunCommand, tmp_path: Path
) -> None:
    """Recorded, trained, improved and deployed, as with an arm of which nothing is simulated here."""
    policy, data = tmp_path / "base", tmp_path / "cubes.zarr"
    shutil.copytree(base_run, policy)
    (tmp_path / "lift").mkdir()
    with serving(tmp_path / "lift", "task=lift") as (address, _):
        deploy = ("deploy", f"robot={address}")
        assert main([*deploy, f"policy={policy}", "operator=scripted", "episodes=2"]) == 0
        robot_rl(
            "data derive", f"raw={policy / 'deploy.raw'}", f"out={data}", "name=cubes", "max_age_ms=5000"
        )
        assert "env" not in Dataset(data).environment
        robot_rl(*bc(data, tmp_path, "task=robot", "name=bc"))
        rl = ("method=residual_chunk", "task=robot", f"base={tmp_path / 'bc'}", *SMALL_RL, "name=rl")
        steps = (
            "method.num_envs=1",
            "method.steps=40",
            "method.warmup_steps=8",
            "hil.reset=home",
            "log_every=10",
        )
        actor = ("hil=on", "hil.operator=none", f"hil.robot={address}", "log_every=10")
        robot_rl("train", *rl, *steps, *actor, f"data={data}", f"runs_dir={tmp_path}")
        assert main([*deploy, f"policy={tmp_path / 'rl'}", "episodes=1", "reset=home"]) == 0
    (episode,) = json.loads((tmp_path / "rl" / "deploy.json").read_text())["episodes"]
    assert episode["steps"] > 0
    robot_rl("report", f"run={tmp_path / 'rl'}")
