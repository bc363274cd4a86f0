"""What a user can get wrong is answered in one line that says what to do, with exit code 2.

Nothing that is there is touched by it.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr
from safetensors.torch import load_file

from robot_rl.cli.main import main
from robot_rl.data.writer import DatasetWriter
from robot_rl.policies.store import read_record, write_files
from tests.conftest import SMALL_BASE, SMALL_RL
from tests.robot_rl.data.small_dataset import write

Refused = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command that must be refused; returns the line that it said."""

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(list(arguments)) == 2
        said = capsys.readouterr().err.strip().splitlines()
        said = [line for line in said if line.startswith("robot-rl: ")]
        assert len(said) == 1
        return said[0]

    return run


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def bc(data: Path, runs: Path, *more: str) -> list[str]:
    return ["train", "method=bc", f"data={data}", f"runs_dir={runs}", "method.steps=3", *SMALL_BASE, *more]


def residual(data: Path, base: Path, runs: Path, *more: str) -> list[str]:
    common = ["method.steps=20", "method.warmup_steps=10", *SMALL_RL]
    return ["train", "method=residual", f"base={base}", f"data={data}", f"runs_dir={runs}", *common, *more]


HIL = ["train", "method=residual", "base=runs/x", "hil=on", "hil.operator=scripted"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], ["trian", "train"]),
        (["train", "method=bc", "task=lif"], ["lif", "lift"]),
        (["train", "method=residul"], ["residul", "residual"]),
        (["train", "method=bc", "method.stesp=3"], ["method.stesp", "method.steps"]),
        (["train", "method=bc", "steps=3"], ["steps", "method.steps"]),
        (["train", "method=bc", "method.steps=many"], ["method.steps", "many"]),
        (["train", "-method.steps=3"], ["method.steps=3"]),
        (["train", "--method.steps"], ["method.steps=…"]),
        (["train"], ["method", "bc", "residual"]),
        (["collect", "skill=2"], ["skill=2", "[0, 1]"]),
        (["train", "method=bc"], ["data=", "robot-rl collect"]),
        (["train", "method=residual"], ["base=runs/", "method=bc"]),
        (["eval"], ["policy"]),
        (["eval", "policy=nowhere"], ["nowhere", "does not exist"]),
        (["report", "run=nowhere"], ["nowhere", "does not exist", "robot-rl train"]),
        (["train", "method=bc", "data=nowhere.zarr"], ["nowhere.zarr does not exist", "robot-rl collect"]),
        (["train", "method=residual", "method.critics_per_target=20"], ["per_target=20", "num_critics=10"]),
        (["train", "method=bc", "device=cuda:99", "data=x.zarr"], ["cuda:99", "device=auto"]),
        (["collect", "task.controller=OSC_POSE_ABS"], ["OSC_POSE_ABS", "OSC_POSITION"]),
        (["collect", "task.env_args={robots:[Panda]}"], ["robots", "leave it out"]),
        (["collect", "task.env_args={reward_shapping:true}"], ["reward_shapping", "reward_shaping"]),
        (["collect", "task=can", "task.env_args={colour:red}"], ["colour", "bin1_pos"]),
        (["collect", "task.env_args.table_full_size=abc"], ["task.env_args", "table_full_size", "abc"]),
        (["collect", "task.env_args.table_friction=5"], ["task.env_args", "table_friction"]),
        (["collect", "task.env_args.placement_initializer=1"], ["task.env_args", "placement_initializer"]),
        (["collect", "task.env_args.table_full_size=[1,2]"], ["task.env_args", "table_full_size"]),
        (["collect", "task.env_args.gripper_types=nope"], ["task.env_args", "gripper_types", "nope"]),
        ([*HIL, "hil.link=tcp://0.0.0.0"], ["tcp://0.0.0.0", "5550"]),
        ([*HIL, "hil.link=tcp://0.0.0.0:5550"], ["tcp://0.0.0.0:5550", "hil.keys", "robot-rl robot keys"]),
        ([*HIL, "hil.link=nowhere"], ["nowhere", "tcp://"]),
        (["train", "method=expo", "method.windows=chunks"], ["windows=chunks", "steps or decisions"]),
        (["train", "method=ibrl", "method.windows=decisions"], ["method.windows"]),
        ([*HIL, "method=dsrl_na", "method.windows=decisions"], ["a person may take over", "leave it out"]),
    ],
)
def test_a_command_that_cannot_work_is_answered_with_what_to_do(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = refused(*arguments)
    for word in words:
        assert word in line
    assert not contents(tmp_path)


def test_training_on_another_format_names_the_command_that_makes_a_dataset(
    refused: Refused, tmp_path: Path
) -> None:
    file, raw, lerobot = tmp_path / "x.hdf5", tmp_path / "x.raw", tmp_path / "x"
    file.write_bytes(b"\x89HDF\r\n\x1a\n")
    raw.mkdir()
    (raw / "recorder.lock").touch()
    (lerobot / "meta").mkdir(parents=True)
    (lerobot / "meta" / "info.json").write_text("{}")
    made = tmp_path / "x.zarr"
    for path, command in (
        (file, f"robot-rl data convert dataset={file} out={made}"),
        (raw, f"robot-rl data derive raw={raw} out={made}"),
        (lerobot, f"robot-rl data convert dataset={lerobot} out={made}"),
    ):
        line = refused(*bc(path, tmp_path / "runs"))
        assert command in line
        assert "collect" not in line
    assert not (tmp_path / "runs").exists()


def test_a_dataset_of_another_task_is_refused(refused: Refused, tmp_path: Path, demonstrations: Path) -> None:
    line = refused(*bc(demonstrations, tmp_path, "task=stack"))
    assert "task was lift, here it is stack" in line
    assert not contents(tmp_path)


def test_a_dataset_of_another_controller_is_refused(
    refused: Refused, tmp_path: Path, demonstrations: Path
) -> None:
    line = refused(*bc(demonstrations, tmp_path, "task.controller=OSC_POSITION"))
    assert "controller was OSC_POSE, here it is OSC_POSITION" in line
    assert "action_spec" in line


def test_a_dataset_of_another_action_spec_is_refused(
    refused: Refused, tmp_path: Path, demonstrations: Path
) -> None:
    data = tmp_path / "data.zarr"
    shutil.copytree(demonstrations, data)
    path = data / "meta" / ".zattrs"
    attributes = json.loads(path.read_text())
    attributes["environment"]["action_spec"][0]["scale"] = 0.1
    path.write_text(json.dumps(attributes))
    assert "action_spec" in refused(*bc(data, tmp_path / "runs"))


def test_a_truncated_dataset_is_refused(refused: Refused, tmp_path: Path, demonstrations: Path) -> None:
    data = tmp_path / "data.zarr"
    shutil.copytree(demonstrations, data)
    array = zarr.open_group(data, mode="r+")["data/action"]
    assert isinstance(array, zarr.Array)
    array.resize((array.shape[0] - 5, array.shape[1]))
    line = refused(*bc(data, tmp_path / "runs"))
    assert "data/action" in line
    assert "torn" in line


def test_a_foreign_zarr_is_refused_and_left_alone(refused: Refused, tmp_path: Path) -> None:
    data = tmp_path / "foreign.zarr"
    zarr.open_group(data, mode="w").create_array("x", shape=(3,), dtype="f4")
    before = contents(data)
    assert "not a dataset" in refused(*bc(data, tmp_path / "runs"))
    assert "not a dataset" in refused("collect", f"data={data}", "episodes=1")
    assert contents(data) == before


def test_nan_in_a_dataset_is_refused_with_its_place(
    refused: Refused, tmp_path: Path, demonstrations: Path
) -> None:
    data = tmp_path / "data.zarr"
    shutil.copytree(demonstrations, data)
    array = zarr.open_group(data, mode="r+")["data/cube_pos"]
    assert isinstance(array, zarr.Array)
    array[7, 1] = np.nan
    line = refused(*bc(data, tmp_path / "runs"))
    assert "data/cube_pos" in line
    assert "episode 0, step 7" in line


def test_collecting_into_a_dataset_of_other_settings_is_refused(
    refused: Refused, demonstrations: Path
) -> None:
    before = contents(demonstrations)
    line = refused("collect", f"data={demonstrations}", "episodes=5", "noise=0.2")
    assert "choose another path" in line
    assert contents(demonstrations) == before


def test_a_base_of_another_action_size_is_refused(
    refused: Refused, tmp_path: Path, demonstrations: Path, base_run: Path
) -> None:
    arguments = residual(demonstrations, base_run, tmp_path, "task.controller=OSC_POSITION")
    line = refused(*arguments)
    assert "base policy" in line
    assert "action_spec" in line
    accepted = "accept=[action_spec,controller,state_layout]"
    line = refused(*arguments, accepted)
    assert "actions of size 7" in line
    assert "19 and 4" in line
    assert not contents(tmp_path)


def test_what_a_policy_observes_cannot_be_accepted_as_a_difference(
    refused: Refused, tmp_path: Path, demonstrations: Path
) -> None:
    for name in ("observation_spec", "observation_spec.state_keys"):
        line = refused(*bc(demonstrations, tmp_path, "task=lift_image", f"accept=[{name}]"))
        assert f"accept=[{name}]: what a policy observes cannot differ" in line
    assert not contents(tmp_path)


def test_a_run_directory_of_another_configuration_is_refused_and_left_alone(
    refused: Refused, tmp_path: Path, demonstrations: Path, base_run: Path
) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(base_run, runs / "base")
    before = contents(runs)
    line = refused(*bc(demonstrations, runs, "name=base", "method.lr=0.5"))
    assert "method.lr was 0.001, now 0.5" in line
    assert "name=" in line
    assert contents(runs) == before


def test_a_run_does_not_go_on_with_a_dataset_that_has_changed(
    refused: Refused, tmp_path: Path, demonstrations: Path
) -> None:
    data = tmp_path / "data.zarr"
    shutil.copytree(demonstrations, data)
    command = bc(data, tmp_path / "runs", "name=run", "threads=1")
    assert main(command) == 0
    assert main(["collect", f"data={data}", "episodes=4", "noise=0.1"]) == 0
    assert "data_sha256 was" in refused(*command, "method.steps=6")


def test_a_directory_that_is_no_run_is_left_alone(
    refused: Refused, tmp_path: Path, demonstrations: Path
) -> None:
    mine = tmp_path / "runs" / "mine"
    mine.mkdir(parents=True)
    (mine / "thesis.tex").write_text("words")
    assert "is not a run" in refused(*bc(demonstrations, tmp_path / "runs", "name=mine"))
    assert contents(mine) == {"thesis.tex": b"words"}


def test_a_damaged_policy_is_refused(refused: Refused, tmp_path: Path, base_run: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(base_run, run)
    weights = next(run.rglob("weights.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-10])
    assert "damaged" in refused("eval", f"policy={run}")


def test_a_damaged_checkpoint_is_refused_and_the_run_left_as_it_was(
    refused: Refused, tmp_path: Path, demonstrations: Path, base_run: Path
) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(base_run, runs / "base")
    state = next((runs / "base").rglob("state.safetensors"))
    state.write_bytes(state.read_bytes()[:-10])
    before = contents(runs)
    config = ["method.steps=31", "threads=1", *SMALL_BASE]
    line = refused("train", "method=bc", f"data={demonstrations}", f"runs_dir={runs}", "name=base", *config)
    assert "is damaged" in line
    assert "remove it" in line
    assert contents(runs) == before


def on_small_disk(
    folder: Path, size: str, arguments: list[str], left: str = "."
) -> subprocess.CompletedProcess[str]:
    """Runs a command with a real file system that fills up at `folder`; stdout lists what is `left` there."""
    script = (
        f"mount -t tmpfs -o size={size} tmpfs {folder} && "
        f"{sys.executable} -m robot_rl {' '.join(arguments)} >&2; code=$?; "
        f"ls -A {folder}/{left}; exit $code"
    )
    # In a mount namespace of its own.
    child = subprocess.run(
        ["unshare", "--mount", "bash", "-c", script], capture_output=True, text=True, timeout=300
    )
    if "unshare" in child.stderr or "mount:" in child.stderr:
        pytest.skip(f"no mount namespace to be had: {child.stderr.splitlines()[0]}")
    return child


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")


@needs_root
def test_a_full_disk_is_named_and_the_last_checkpoint_stays(tmp_path: Path, demonstrations: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    arguments = [
        *bc(demonstrations, runs, "name=run", "threads=1", "checkpoint_every=5"),
        "method.steps=200",
        "base.width=256",
    ]
    child = on_small_disk(runs, "6m", arguments, "run/checkpoints")
    assert child.returncode == 2, child.stderr
    assert "the disk is full" in child.stderr
    assert "the same command again" in child.stderr
    assert all(name.isdigit() for name in child.stdout.split())


@needs_root
@pytest.mark.parametrize("size", ["64k", "1m"])
def test_a_full_disk_is_named_and_nothing_is_left_of_a_converted_file(tmp_path: Path, size: str) -> None:
    """HDF5 itself would crash."""
    dataset = write(tmp_path / "a.zarr", (9000, 9000))
    out = tmp_path / "out"
    out.mkdir()
    child = on_small_disk(out, size, ["data", "convert", f"dataset={dataset.path}", f"out={out}/a.hdf5"])
    assert child.returncode == 2, child.stderr
    said = [line for line in child.stderr.splitlines() if not line.startswith("convert: ")]
    assert said == ["robot-rl: the disk is full; free some space and run the same command again"]
    assert child.stdout == ""


DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000


def test_weights_with_nan_are_refused_though_the_fingerprint_is_theirs(
    refused: Refused, tmp_path: Path, base_run: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(base_run, run)
    folder = next(run.rglob("weights.safetensors")).parent
    weights = load_file(folder / "weights.safetensors")
    name = next(name for name, tensor in weights.items() if tensor.is_floating_point() and tensor.numel())
    weights[name].view(-1)[0] = float("nan")
    record = read_record(folder)
    write_files(
        folder, kind=record.kind, config=record.config, spec=record.spec, meta=record.meta, weights=weights
    )
    line = refused("eval", f"policy={run}")
    assert f"NaN or infinity in {name}" in line


@pytest.mark.parametrize("name", ["policy.json", "state.json", "config.yaml", "run.json"])
@pytest.mark.parametrize("content", [DEEP, "[]", "{"])
def test_a_run_with_a_damaged_file_is_refused_and_left_alone(
    refused: Refused, tmp_path: Path, demonstrations: Path, base_run: Path, name: str, content: str
) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(base_run, runs / "base")
    file = next((runs / "base").rglob(name))
    file.write_text(content)
    before = contents(runs)
    if name == "policy.json":
        line = refused("eval", f"policy={runs}/base")
    else:
        more = ["name=base", "threads=1", "method.steps=31", *SMALL_BASE]
        line = refused("train", "method=bc", f"data={demonstrations}", f"runs_dir={runs}", *more)
    assert name in line or "damaged" in line or "another configuration" in line
    assert contents(runs) == before


@pytest.mark.parametrize("file", [".zattrs", "episode_ends/.zarray"])
@pytest.mark.parametrize("content", [DEEP, "[]", "7", "{", '{"shape": 1e400}'])
def test_a_dataset_with_a_damaged_description_is_refused(
    refused: Refused, tmp_path: Path, demonstrations: Path, file: str, content: str
) -> None:
    data = tmp_path / "data.zarr"
    shutil.copytree(demonstrations, data)
    (data / "meta" / file).write_text(content)
    for command in (bc(data, tmp_path / "runs"), ["data", "info", f"dataset={data}"]):
        line = refused(*command)
        assert str(data) in line
        assert len(line) < 1000


@pytest.mark.parametrize("array", ["meta/episode_ends", "meta/episode_seed", "data/action"])
@pytest.mark.parametrize("grown", ["rows", "row", "chunk", "ends"])
@pytest.mark.parametrize("size", [10**9, 10**13, 2**63])
def test_a_dataset_whose_shapes_are_more_than_it_has_is_answered_in_one_line(
    refused: Refused, tmp_path: Path, demonstrations: Path, array: str, grown: str, size: int
) -> None:
    data = tmp_path / "a.zarr"
    shutil.copytree(demonstrations, data)
    file = data / array / ".zarray"
    content = json.loads(file.read_text())
    if grown == "row":
        content["shape"] = [content["shape"][0], size]
        content["chunks"] = [content["chunks"][0], size]
    else:
        content["shape"][0] = size
        if grown != "rows":
            content["chunks"][0] = size
    file.write_text(json.dumps(content))
    arguments = ["data", "info", f"dataset={data}"]
    assert str(data) in refused(*arguments)
    with pytest.raises(ValueError, match=r"a\.zarr"):
        DatasetWriter(data, {}, {})


@pytest.mark.parametrize("shape", [(10**9, 7), (10**13, 7), (3, 10**12)])
@pytest.mark.parametrize("name", ["actions", "states", "obs/object"])
def test_an_hdf5_file_whose_shapes_are_more_than_it_has_is_answered_in_one_line(
    refused: Refused, tmp_path: Path, name: str, shape: tuple[int, int]
) -> None:
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = 3
        data.attrs["env_args"] = json.dumps(
            {"env_name": "Lift", "type": 1, "env_kwargs": {"robots": ["Panda"]}}
        )
        demo = data.create_group("demo_0")
        demo.attrs["num_samples"] = 3
        for key, width in (("actions", 7), ("states", 32), ("obs/object", 10)):
            wanted = shape if key == name else (3, width)
            demo.create_dataset(key, shape=wanted, dtype="f8", chunks=(1, min(wanted[1], 1000)))
            if key != name:
                demo[key][:] = 0.0
        for key in ("rewards", "dones"):
            demo.create_dataset(key, data=np.zeros(3))
    if name != "obs/object":
        line = refused("data", "convert", f"dataset={path}", f"out={tmp_path}/x.zarr")
        assert str(path) in line
    with pytest.raises(SystemExit, match="1"):
        main(["data", "validate", f"dataset={path}"])
    assert [one.name for one in tmp_path.iterdir()] == ["a.hdf5"]
