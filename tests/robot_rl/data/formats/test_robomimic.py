"""robomimic's files: ours have its layout and come back to the bit, others' are understood or refused."""

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import robosuite

from robot_rl.cli.main import main
from robot_rl.data.dataset import Dataset
from robot_rl.data.formats.convert import ConvertRequest, convert
from robot_rl.data.formats.robomimic.file import find_problems
from robot_rl.data.formats.robomimic.importer import import_foreign
from robot_rl.data.playback import play, playback_env
from robot_rl.data.writer import DatasetWriter
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig
from robot_rl.factory import make_robosuite_env
from tests.conftest import RunCommand
from tests.robot_rl.data.formats.foreign import AFTER, collect
from tests.robot_rl.data.small_dataset import as_recorded, same_data, write


@pytest.fixture(scope="module")
def exported(demonstrations: Path, tmp_path_factory: pytest.TempPathFactory, robot_rl: RunCommand) -> Path:
    path = tmp_path_factory.mktemp("robomimic") / "lift.hdf5"
    robot_rl("data convert", f"dataset={demonstrations}", f"out={path}")
    return path


@pytest.fixture(scope="module")
def env(demonstrations: Path) -> Iterator[RobosuiteEnv]:
    env = playback_env(Dataset(demonstrations))
    yield env
    env.close()


def test_the_file_has_robomimics_layout(exported: Path, demonstrations: Path) -> None:
    dataset = Dataset(demonstrations)
    with h5py.File(exported, "r") as file:
        data = file["data"]
        assert int(data.attrs["total"]) == dataset.num_steps
        told = json.loads(data.attrs["env_args"])
        assert (told["env_name"], told["type"]) == ("Lift", 1)
        assert {"robots", "controller_configs", "control_freq"} <= told["env_kwargs"].keys()
        demos = [name for name in data if name.startswith("demo_")]
        assert sorted(demos) == ["demo_0", "demo_1", "demo_2"]
        for number, rows in enumerate(dataset.episodes):
            demo, steps = data[f"demo_{number}"], rows.stop - rows.start
            assert int(demo.attrs["num_samples"]) == steps
            assert demo.attrs["model_file"].startswith("<mujoco")
            assert demo["actions"].shape == (steps, 7)
            assert demo["states"].dtype == np.float64
            assert demo["rewards"].shape == demo["dones"].shape == (steps,)
            assert np.abs(demo["actions"]).max() <= 1
            assert set(demo["obs"]) == set(demo["next_obs"])
            for key in demo["obs"]:
                now, following = demo["obs"][key][()], demo["next_obs"][key][()]
                np.testing.assert_array_equal(following[:-1], now[1:])
        masks = {key: [name.decode() for name in file["mask"][key]] for key in file["mask"]}
        assert sorted(masks.pop("train") + masks.pop("valid")) == sorted(demos)
        assert sorted(name for names in masks.values() for name in names) == sorted(demos)
    assert find_problems(exported) == []


def test_observations_are_those_of_robomimics_environment(
    exported: Path, demonstrations: Path, env: RobosuiteEnv
) -> None:
    """By the rule of its `EnvRobosuite.get_observation`, and with `object`."""
    dataset = Dataset(demonstrations)
    env.reset(seed=0)
    with h5py.File(exported, "r") as file:
        demo, rows = file["data/demo_1"], dataset.episodes[1]
        env.set_state(dataset["sim_state"][rows][5])
        raw = env.sim._get_observations(force_update=True)
        wanted = {"object"} | {
            key for key in raw if key.startswith("robot0_") and not key.endswith("proprio-state")
        }
        assert set(demo["obs"]) == wanted
        parts = [dataset[key][rows] for key in ("cube_pos", "cube_quat", "gripper_to_cube_pos")]
        np.testing.assert_array_equal(demo["obs/object"], np.concatenate(parts, axis=1))
        np.testing.assert_allclose(demo["obs/object"][5], raw["object-state"], atol=1e-2)
        # What came after the last step, where the cube has been lifted.
        assert demo["rewards"][-1] == 1
        height = [demo[f"{group}/object"][-1, 2] for group in ("obs", "next_obs")]
        assert height[1] > height[0]


def test_plain_robosuite_acts_the_file_as_it_was(exported: Path) -> None:
    """As robomimic does: the environment of env_args, the model and the first state of a demonstration."""
    with h5py.File(exported, "r") as file:
        told = json.loads(file["data"].attrs["env_args"])
        demo = file["data/demo_1"]
        env = robosuite.make(told["env_name"], **told["env_kwargs"])
        env.reset()
        env.reset_from_xml_string(env.edit_model_xml(demo.attrs["model_file"]))
        env.sim.reset()
        states = demo["states"][()]
        env.sim.set_state_from_flattened(states[0])
        env.sim.forward()
        for action, wanted in zip(demo["actions"][:-1], states[1:], strict=True):
            env.step(action)
            np.testing.assert_array_equal(env.sim.get_state().flatten(), wanted)
        env.step(demo["actions"][-1])
        assert env._check_success()
        assert demo["dones"][-1] == 1
        env.close()


def test_episodes_that_begin_otherwise_are_counted(
    demonstrations: Path,
    env: RobosuiteEnv,
    tmp_path: Path,
    robot_rl: RunCommand,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dataset = Dataset(demonstrations)
    env.reset(seed=3)
    states = [env.get_state()]
    for _ in range(3):
        env.step(np.zeros(7, np.float32))
        states.append(env.get_state())
    rows = dataset.episodes[0]
    episode = {key: dataset[key][rows][:4] for key in dataset.keys} | {"sim_state": np.stack(states)}
    episode["applied_action"] = np.zeros((4, 7), np.float32)
    writer = DatasetWriter(tmp_path / "a.zarr", dataset.environment, dataset.collection)
    writer.append({key: dataset[key][rows] for key in dataset.keys}, success=True, seed=1)
    writer.append(episode, success=False, seed=2)
    robot_rl("data convert", f"dataset={tmp_path}/a.zarr", f"out={tmp_path}/a.hdf5")
    assert "1 of 2 episodes do not begin as robomimic begins" in capsys.readouterr().err


def test_what_was_recorded_of_a_served_task_says_which_environment_it_is(
    demonstrations: Path, tmp_path: Path, robot_rl: RunCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    as_recorded(Dataset(demonstrations), tmp_path / "a.zarr")
    robot_rl("data convert", f"dataset={tmp_path}/a.zarr", f"out={tmp_path}/a.hdf5")
    assert "robomimic can train on the file and act in its task" in capsys.readouterr().err
    with h5py.File(tmp_path / "a.hdf5", "r") as file:
        told = json.loads(file["data"].attrs["env_args"])
        assert (told["env_name"], told["type"], told["env_kwargs"]["robots"]) == ("Lift", 1, ["Panda"])
        observed = {"robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos", "robot0_joint_pos", "object"}
        assert set(file["data/demo_0/obs"]) == observed
    robot_rl("data convert", f"dataset={tmp_path}/a.hdf5", f"out={tmp_path}/b.zarr")
    same_data(Dataset(tmp_path / "a.zarr"), Dataset(tmp_path / "b.zarr"))


def test_our_file_comes_back_to_the_bit(
    exported: Path, demonstrations: Path, tmp_path: Path, robot_rl: RunCommand
) -> None:
    robot_rl("data convert", f"dataset={exported}", f"out={tmp_path}/back.zarr")
    one, other = Dataset(demonstrations), Dataset(tmp_path / "back.zarr")
    same_data(one, other)
    assert (one.environment, one.collection) == (other.environment, other.collection)


def test_a_robots_dataset_with_images_comes_back_to_the_bit(tmp_path: Path, robot_rl: RunCommand) -> None:
    one = write(tmp_path / "a.zarr", (40, 7), ("front", "wrist"))
    robot_rl("data convert", f"dataset={one.path}", f"out={tmp_path}/a.hdf5")
    assert find_problems(tmp_path / "a.hdf5") == []
    with h5py.File(tmp_path / "a.hdf5", "r") as file:
        demo = file["data/demo_0"]
        np.testing.assert_array_equal(demo["obs/front_image"], one["images.front"][:40])
        # Over the border of a block.
        np.testing.assert_array_equal(demo["next_obs/front_image"][:-1], demo["obs/front_image"][1:])
        np.testing.assert_array_equal(demo["next_obs/front_image"][-1], demo["obs/front_image"][-1])
        assert [name.decode() for name in file["mask/failure"]] == ["demo_1"]
        assert demo["states"].shape == (40, 0)
    robot_rl("data convert", f"dataset={tmp_path}/a.hdf5", f"out={tmp_path}/b.zarr")
    other = Dataset(tmp_path / "b.zarr")
    same_data(one, other)
    assert one.collection == other.collection


def test_ctrl_c_ends_an_export_after_an_episode_and_nothing_is_left(tmp_path: Path) -> None:
    one = write(tmp_path / "a.zarr", (4, 5, 6))
    done: list[int] = []

    def show(episodes: int) -> None:
        done.append(episodes)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        convert(ConvertRequest(one.path, tmp_path / "a.hdf5"), show)
    assert done == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["a.zarr"]


@pytest.mark.parametrize("name", ["../../evil", "/tmp/evil", "a/b", ".hidden", "", 3])
def test_a_camera_of_a_file_names_no_file_elsewhere(
    tmp_path: Path, robot_rl: RunCommand, name: object
) -> None:
    (tmp_path / "in").mkdir()
    one = write(tmp_path / "in" / "a.zarr", (4,), ("front",))
    robot_rl("data convert", f"dataset={one.path}", f"out={tmp_path}/in/a.hdf5")
    with h5py.File(tmp_path / "in" / "a.hdf5", "r+") as file:
        own = json.loads(file["data"].attrs["robot_rl"])
        own["environment"]["observation_spec"]["cameras"] = [name]
        file["data"].attrs["robot_rl"] = json.dumps(own)
    with pytest.raises(ValueError, match="is not a valid name"):
        robot_rl("data convert", f"dataset={tmp_path}/in/a.hdf5", f"out={tmp_path}/a.zarr")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_file_from_which_somebody_has_taken_episodes_comes_back_without_them(
    tmp_path: Path, robot_rl: RunCommand
) -> None:
    one = write(tmp_path / "a.zarr", (4, 5, 6))
    robot_rl("data convert", f"dataset={one.path}", f"out={tmp_path}/a.hdf5")
    with h5py.File(tmp_path / "a.hdf5", "r+") as file:
        del file["data/demo_1"]
    assert "data says that there are 15 steps in all, there are 10" in find_problems(tmp_path / "a.hdf5")
    robot_rl("data convert", f"dataset={tmp_path}/a.hdf5", f"out={tmp_path}/b.zarr")
    other = Dataset(tmp_path / "b.zarr")
    assert other.seeds.tolist() == [100, 102]
    assert [note["outcome"] for note in other.collection["episodes"]] == ["success", "success"]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collect(tmp_path_factory.mktemp("foreign") / "demo.hdf5")


@pytest.mark.full
def test_robosuites_own_collection_becomes_a_dataset(
    collected: Path, tmp_path: Path, robot_rl: RunCommand
) -> None:
    assert find_problems(collected) == []
    robot_rl("data convert", f"dataset={collected}", f"out={tmp_path}/x.zarr")
    dataset = Dataset(tmp_path / "x.zarr")
    assert dataset.environment["task"] == "lift"
    assert dataset.success.tolist() == [True, True]
    env = playback_env(dataset)
    with h5py.File(collected, "r") as file:
        for number, rows in enumerate(dataset.episodes):
            demo = file[f"data/demo_{number + 1}"]
            steps = rows.stop - rows.start
            # They go on after the success, ours end with it.
            assert steps == len(demo["actions"]) - AFTER + 1
            np.testing.assert_array_equal(dataset["action"][rows], demo["actions"][:steps].astype(np.float32))
            flat = demo["states"][:steps]
            np.testing.assert_array_equal(dataset["sim_state"][rows][:, : flat.shape[1]], flat)
            # time, seven joints, two fingers, then the cube.
            np.testing.assert_allclose(dataset["robot0_joint_pos"][rows], flat[:, 1:8], atol=1e-6)
            np.testing.assert_allclose(dataset["cube_pos"][rows], flat[:, 10:13], atol=1e-6)
            playback = play(dataset, env, number)
            assert playback.success
            # Their model was made of XML with six digits.
            assert playback.deviations["robot0 joints"].farthest < 1e-3
    env.close()
    assert dataset.collection["episodes"][0]["cut"] == AFTER - 1


@pytest.mark.parametrize("frame", ["world", pytest.param("base", marks=pytest.mark.full)])
def test_absolute_actions_become_poses(frame: str, tmp_path: Path, robot_rl: RunCommand) -> None:
    path = collect(tmp_path / "demo.hdf5", episodes=1, absolute=frame)
    robot_rl("data convert", f"dataset={path}", f"out={tmp_path}/x.zarr")
    dataset = Dataset(tmp_path / "x.zarr")
    assert dataset.environment["input_type"] == "absolute"
    assert dataset["action"].shape[1] == 10
    assert dataset.success.tolist() == [True]
    env = playback_env(dataset)
    playback = play(dataset, env, 0)
    env.close()
    assert playback.success, "acting the poses again solves the task"


def test_images_are_drawn_of_the_states_for_the_cameras_that_are_asked_for(
    collected: Path, tmp_path: Path, robot_rl: RunCommand
) -> None:
    camera = ["task=lift", "task.cameras=[agentview]", "task.image_size=[32,32]"]
    robot_rl("data convert", f"dataset={collected}", f"out={tmp_path}/x.zarr", *camera)
    dataset = Dataset(tmp_path / "x.zarr")
    images = dataset["images.agentview"]
    assert images.shape == (dataset.num_steps, 32, 32, 3)
    # The arm moves in them, and each episode has its own.
    assert np.abs(images[0].astype(int) - images[dataset.episodes[0].stop - 1]).mean() > 1


def refusal(
    source: Path, damage: Callable[[Any], None], folder: Path, capsys: pytest.CaptureFixture[str]
) -> str:
    """What is said of a damaged copy, of which nothing may be made."""
    path = folder / "demo.hdf5"
    shutil.copy(source, path)
    with h5py.File(path, "r+") as file:
        damage(file)
    assert main(["data", "convert", f"dataset={path}", f"out={folder}/x.zarr"]) == 2
    assert [child.name for child in folder.iterdir()] == ["demo.hdf5"]
    return capsys.readouterr().err


def without(*names: str) -> Callable[[h5py.File], None]:
    def damage(file: h5py.File) -> None:
        for name in names:
            owner, _, attribute = name.partition("@")
            if attribute:
                del file[owner].attrs[attribute]
            else:
                del file[owner]

    return damage


def own_without(*names: str) -> Callable[[h5py.File], None]:
    """Takes out of what the file says of its dataset the value to which the names lead."""

    def damage(file: h5py.File) -> None:
        own = json.loads(file["data"].attrs["robot_rl"])
        inner = own
        for name in names[:-1]:
            inner = inner[name]
        del inner[names[-1]]
        file["data"].attrs["robot_rl"] = json.dumps(own)

    return damage


def other_environment(file: h5py.File) -> None:
    told = json.loads(file["data"].attrs["env_info"])
    told["control_freq"] = 10
    told["robots"] = ["Sawyer"]
    told["controller_configs"]["body_parts"][
        "right" if "right" in told["controller_configs"]["body_parts"] else "arms"
    ] = {"type": "JOINT_POSITION"}
    file["data"].attrs["env_info"] = json.dumps(told)


def no_output(file: h5py.File) -> None:
    told = json.loads(file["data"].attrs["env_info"])
    told["controller_configs"] = {"type": "OSC_POSE", "output_max": [None]}
    file["data"].attrs["env_info"] = json.dumps(told)


def other_model(file: h5py.File) -> None:
    model = file["data/demo_1"].attrs["model_file"]
    file["data/demo_1"].attrs["model_file"] = model.replace("cube_joint0", "ball_joint0")


def empty_episode(file: h5py.File) -> None:
    del file["data/demo_2/actions"]
    file["data/demo_2"].create_dataset("actions", data=np.zeros((0, 7)))


def other_task(file: h5py.File) -> None:
    file["data"].attrs["env"] = "Wipe"


@pytest.mark.parametrize(
    ("damage", "answer"),
    [
        (without("data"), "is no file of robomimic: the group `data` is missing"),
        (without("data@env_info"), "data lacks the attribute env_args (or env_info"),
        (
            without("data/demo_1/states"),
            "/data/demo_1/states is missing: robosuite's flattened states are needed",
        ),
        (without("data/demo_2/actions"), "/data/demo_2/actions is missing"),
        (without("data/demo_1", "data/demo_2"), "has no demonstration"),
        (empty_episode, "/data/demo_2/actions is [0, 7]: it has to be steps by numbers, and not empty"),
        (other_environment, "control_freq was 10, here it is 20; controller was JOINT_POSITION"),
        (no_output, "demo.hdf5: output_max of its controller holds no numbers"),
        (other_model, "its model has other joints than the task's: ball_joint0, cube_joint0"),
        (other_task, "its model has other joints than the task's"),
    ],
)
def test_what_a_file_lacks_is_named_and_nothing_is_made(
    collected: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Any], None],
    answer: str,
) -> None:
    assert answer in refusal(collected, damage, tmp_path, capsys)


def replaced(name: str, content: Any) -> Callable[[h5py.File], None]:
    """Puts something else, or a group for None, where an array was."""

    def damage(file: h5py.File) -> None:
        del file[name]
        if content is None:
            file.create_group(name)
        else:
            file[name] = content

    return damage


def attribute(owner: str, name: str, content: Any) -> Callable[[h5py.File], None]:
    def damage(file: h5py.File) -> None:
        file[owner].attrs[name] = content

    return damage


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, robot_rl: RunCommand) -> Path:
    """A file of a robot, with images."""
    folder = tmp_path_factory.mktemp("small")
    one = write(folder / "a.zarr", (4, 5), ("front",))
    robot_rl("data convert", f"dataset={one.path}", f"out={folder}/a.hdf5")
    return folder / "a.hdf5"


ACTIONS, IMAGES = "data/demo_1/actions", "data/demo_1/obs/front_image"


@pytest.mark.parametrize(
    ("damage", "answer"),
    [
        (replaced(ACTIONS, None), "/data/demo_1/actions is no array"),
        (replaced(ACTIONS, np.array(["a", "b"], "S")), "/data/demo_1/actions is no array of numbers"),
        (replaced(ACTIONS, 3.0), "/data/demo_1/actions is no array of numbers"),
        (replaced(ACTIONS, h5py.Empty("f4")), "/data/demo_1/actions is no array of numbers"),
        (replaced(ACTIONS, h5py.SoftLink("/nowhere")), "/data/demo_1/actions is missing"),
        (replaced("data/demo_1", np.zeros(3)), "/data/demo_1 is no group"),
        (replaced("data/demo_1/obs", np.zeros(3)), "/data/demo_1/obs is no group"),
        (replaced("data/demo_1/robot_rl", np.zeros(3)), "/data/demo_1/robot_rl is no group"),
        (replaced(IMAGES, None), "/data/demo_1/obs/front_image is no array"),
        (replaced(IMAGES, np.zeros((5, 2, 2, 3))), "the episode differs from those"),
        (attribute("data", "robot_rl", "[1]"), "/data has no readable attribute robot_rl (Expected `object`"),
        (attribute("data", "robot_rl", np.zeros(3)), "/data has no readable attribute robot_rl"),
        (attribute("data/demo_1", "robot_rl", '{"number": "x", "success": 1, "seed": 0}'), "Expected `int`"),
        (
            attribute("data/demo_1", "robot_rl", '{"number": 7, "success": true, "seed": 0}'),
            "knows 2 episodes, and not number 7",
        ),
    ],
)
def test_what_is_something_else_in_a_file_is_named_with_the_file(
    small: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Any], None],
    answer: str,
) -> None:
    (said,) = [
        line
        for line in refusal(small, damage, tmp_path, capsys).splitlines()
        if line.startswith("robot-rl: ")
    ]
    assert answer in said
    assert f"{tmp_path}/demo.hdf5" in said


@pytest.mark.parametrize("value", ["many", np.zeros(3), h5py.Empty("f4")])
def test_counts_that_are_no_numbers_are_faults(small: Path, tmp_path: Path, value: Any) -> None:
    path = tmp_path / "x.hdf5"
    shutil.copy(small, path)
    with h5py.File(path, "r+") as file:
        file["data"].attrs["total"] = value
    (fault,) = find_problems(path)
    assert f"{path}: the attribute total of /data is no whole number" in fault


def test_a_damaged_chunk_of_images_is_a_fault(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.hdf5"
    shutil.copy(small, path)
    with h5py.File(path, "r") as file:
        chunk = file[IMAGES].id.get_chunk_info(2)
    with path.open("r+b") as raw:
        raw.seek(chunk.byte_offset)
        raw.write(bytes(chunk.size))
    (fault,) = find_problems(path)
    assert fault.startswith(f"{path} is damaged: /{IMAGES} cannot be read")


def external_link(file: h5py.File) -> None:
    del file[ACTIONS]
    file[ACTIONS] = h5py.ExternalLink("other.hdf5", "x")


def external_demonstrations(file: h5py.File) -> None:
    del file["data"]
    file["data"] = h5py.ExternalLink("other.hdf5", "/")


def external_storage(file: h5py.File) -> None:
    del file[ACTIONS]
    file.create_dataset(ACTIONS, (5, 3), "f4", external=[("other.bin", 0, h5py.h5f.UNLIMITED)])


def virtual(file: h5py.File) -> None:
    del file[ACTIONS]
    found = h5py.VirtualLayout((5, 3), "f4")
    found[:] = h5py.VirtualSource("other.hdf5", "x", (5, 3))
    file.create_virtual_dataset(ACTIONS, found)


@pytest.mark.parametrize(
    ("damage", "answer"),
    [
        (external_link, "data/demo_1/actions is a link to another file, which is not followed"),
        (external_demonstrations, "data is a link to another file, which is not followed"),
        (external_storage, "the content of /data/demo_1/actions is in another file, which is not read"),
        (virtual, "the content of /data/demo_1/actions is in another file, which is not read"),
    ],
)
def test_a_file_is_not_followed_to_other_files(
    small: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Any], None],
    answer: str,
) -> None:
    monkeypatch.chdir(tmp_path.parent)
    with h5py.File("other.hdf5", "w") as other:
        other["x"] = np.zeros((5, 3), "f4")
    Path("other.bin").write_bytes(bytes(60))
    said = refusal(small, damage, tmp_path, capsys).splitlines()[-1]
    assert said.startswith(f"robot-rl: {tmp_path}/demo.hdf5: {answer}")
    assert any(answer in fault for fault in find_problems(tmp_path / "demo.hdf5"))


def test_a_torn_file_and_one_of_a_newer_program_are_named(exported: Path, tmp_path: Path) -> None:
    torn = tmp_path / "torn.hdf5"
    torn.write_bytes(exported.read_bytes()[:5000])
    assert "is damaged or no HDF5 file" in find_problems(torn)[0]
    newer = tmp_path / "newer.hdf5"
    shutil.copy(exported, newer)
    with h5py.File(newer, "r+") as file:
        own = json.loads(file["data"].attrs["robot_rl"])
        file["data"].attrs["robot_rl"] = json.dumps({**own, "format": 7})
    assert "was made of a dataset of format 7; this program reads up to 1" in find_problems(newer)[0]


@pytest.mark.parametrize(
    ("damage", "answer"),
    [
        (
            own_without("environment"),
            "/data has no readable attribute robot_rl (Object missing required field `environment`)",
        ),
        (
            own_without("environment", "observation_spec"),
            "the environment of the attribute robot_rl has no observation_spec",
        ),
        (without("data/demo_1@robot_rl"), "/data/demo_1 has no readable attribute robot_rl"),
        (without("data/demo_1/robot_rl", "data/demo_1/obs"), "/data/demo_1 lacks obs, robot_rl"),
    ],
)
def test_what_a_file_of_ours_lacks_is_named_and_nothing_is_made(
    exported: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Any], None],
    answer: str,
) -> None:
    assert answer in refusal(exported, damage, tmp_path, capsys)


def test_faults_of_a_file_are_all_told(exported: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.hdf5"
    shutil.copy(exported, path)
    with h5py.File(path, "r+") as file:
        file["data/demo_0/actions"][2, 1] = 3.0
        file["data/demo_1/obs/object"][0, 0] = np.nan
        del file["data/demo_2/rewards"]
        del file["data/demo_2"].attrs["num_samples"]
        file.create_dataset("mask/mine", data=np.array(["demo_9"], "S"))
    assert set(find_problems(path)) == {
        "demo_0/actions is up to 3, beyond [-1, 1]",
        "demo_1/obs/object has NaN or infinity",
        "demo_2 lacks rewards",
        "demo_2 lacks the attribute num_samples",
        "mask/mine names demo_9, which is not there",
    }


def test_deltas_in_the_worlds_axes_are_refused_for_arms_whose_bases_are_turned(tmp_path: Path) -> None:
    """The two arms of TwoArmLift face each other; here, deltas are in the axes of each base."""
    robots = ["Panda", "Panda"]
    task = TaskConfig(name="two_arm_lift", env="TwoArmLift", robots=robots, state_keys=["pot_pos"])
    env = make_robosuite_env(task, observe_all=True)
    largest = [0.05] * 3 + [0.5] * 3
    for frame, answer in (("world", "are in the frame 'world'"), ("base", "has no demonstration")):
        arm = {"type": "OSC_POSE", "output_max": largest, "input_ref_frame": frame}
        kwargs = {"robots": robots, "control_freq": 20, "controller_configs": arm}
        told = {"env_name": "TwoArmLift", "env_kwargs": kwargs}
        file: Any = SimpleNamespace(path=tmp_path, environment=told, demos={}, masks={})
        with pytest.raises(ValueError, match=answer):
            import_foreign(file, tmp_path / "x.zarr", env, (), lambda done: None)
    env.close()
