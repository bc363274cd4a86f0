"""Distillation: a trained base learns more, from a tuned policy's data, and keeps what it could."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from robot_rl.cli.compose import load_group
from robot_rl.cli.main import main
from robot_rl.data.dataset import TARGET, Dataset, make_windows
from robot_rl.data.joined_windows import join_windows
from robot_rl.data.policy_episodes import ACTORS
from robot_rl.data.window_batches import WindowBatches
from robot_rl.data.writer import DatasetWriter
from robot_rl.envs.task import TaskConfig
from robot_rl.learning.distributed import Processes
from robot_rl.methods.bc import BCConfig, BCLearner, BCMethod
from robot_rl.methods.method import DatasetContext
from robot_rl.policies.bases.flow import FlowConfig
from robot_rl.policies.bases.imitation import ImitationPolicy
from robot_rl.policies.store import load_base
from robot_rl.saved_policies.loading import load_networks, policy_directory
from robot_rl.training.components import build_offline
from robot_rl.training.context import RunBase, RunInputs
from tests.conftest import RunCommand
from tests.robot_rl.data import small_dataset
from tests.robot_rl.data.tuned_policies import save_shifted
from tests.robot_rl.training.test_training import assert_same, final_state, metrics

CPU = torch.device("cpu")
SHIFT = 0.25
SMALL = ("method.batch_size=32", "method.lr_warmup=5", "threads=1")


def trained(run: Path) -> ImitationPolicy:
    networks, _ = load_networks(run)
    assert isinstance(networks, ImitationPolicy)
    return networks


@pytest.fixture(scope="module")
def shifted(tmp_path_factory: pytest.TempPathFactory, base_run: Path) -> Path:
    """A run whose policy adds a constant to its base's actions."""
    return save_shifted(base_run, tmp_path_factory.mktemp("tuned") / "run", SHIFT)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, robot_rl: RunCommand, shifted: Path) -> Path:
    """Episodes of that policy, after its base."""
    path = tmp_path_factory.mktemp("data") / "tuned.zarr"
    robot_rl(
        "collect",
        f"policy={shifted}",
        "task.horizon=40",
        "base_first=0.5",
        f"data={path}",
        "episodes=6",
    )
    return path


def inputs(run: Path, data: Path) -> RunInputs:
    return RunInputs(load_group("task", "lift", TaskConfig), RunBase(str(run)), str(data), 0, CPU)


def test_training_goes_on_from_the_bases_weights_normalisers_and_loss(base_run: Path, data: Path) -> None:
    config = BCConfig(batch_size=32, successes_only=False)
    learner = build_offline(BCMethod(config), inputs(base_run, data)).learner
    assert isinstance(learner, BCLearner)
    base = trained(base_run)
    assert_same(dict(learner.policy.state_dict()), dict(base.state_dict()))
    assert all(weights.requires_grad for weights in learner.policy.parameters())
    dataset = Dataset(data)
    acted = dataset["source"] == ACTORS.index("policy")
    windows = make_windows(dataset, 1, base.spec.horizon, np.ones(6, bool), acted)
    reference = BCLearner(config, base.requires_grad_(True), windows, CPU, 0)
    assert torch.equal(learner.update()["loss"], reference.update()["loss"])
    for one in (learner.policy, learner.result):
        for name, buffer in trained(base_run).named_buffers():
            assert torch.equal(one.get_buffer(name), buffer), name


def test_the_base_of_a_tuned_run_is_taken(shifted: Path, base_run: Path, data: Path) -> None:
    learner = build_offline(BCMethod(BCConfig(successes_only=False)), inputs(shifted, data)).learner
    assert isinstance(learner, BCLearner)
    assert_same(dict(learner.policy.state_dict()), dict(trained(base_run).state_dict()))


def test_a_resumed_distillation_ends_like_an_uninterrupted_one(
    tmp_path: Path, robot_rl: RunCommand, base_run: Path, data: Path, demonstrations: Path
) -> None:
    common = (
        *("train", "method=bc", f"base={base_run}", f"data={data}", f"runs_dir={tmp_path}", *SMALL),
        *(f"method.replay={demonstrations}", "method.successes_only=false", "log_every=5"),
    )
    robot_rl(*common, "name=straight", "method.steps=20")
    for steps in (10, 20):
        robot_rl(*common, "name=resumed", f"method.steps={steps}")
    assert_same(final_state(tmp_path / "straight"), final_state(tmp_path / "resumed"))
    assert metrics(tmp_path / "straight") == metrics(tmp_path / "resumed")
    # Neither another second dataset nor a changed one.
    assert main([*common, "name=straight", "method.steps=20", f"method.replay={data}"]) == 2


def test_a_base_learns_the_actions_of_a_tuned_policy(
    tmp_path: Path, robot_rl: RunCommand, base_run: Path, data: Path, shifted: Path
) -> None:
    """And not those of its own part of the episodes."""
    robot_rl(
        *("train", "method=bc", f"base={base_run}", f"data={data}", f"runs_dir={tmp_path}", "name=distilled"),
        *("method.steps=150", "method.lr=3e-3", "method.successes_only=false", *SMALL),
    )
    held = tmp_path / "held.zarr"
    collect = ("collect", f"policy={shifted}", "task.horizon=40", "episodes=3", "seed=9")
    robot_rl(*collect, f"data={held}")
    dataset = Dataset(held)
    windows = make_windows(dataset, 1, 8, np.ones(3, bool))
    batch = {
        name: torch.from_numpy(values)
        for name, values in (("state", windows.state), ("actions", windows.actions), ("mask", windows.mask))
    }
    before, after = trained(base_run), trained(tmp_path / "distilled")
    with torch.no_grad():
        losses = [float(one.loss(batch, torch.Generator().manual_seed(0))) for one in (before, after)]
        noise = torch.randn(len(batch["state"]), 1, *(before.spec.noise_shape or ()))
        moved = after.sample(batch, noise=noise).actions - before.sample(batch, noise=noise).actions
    assert losses[1] < 0.7 * losses[0]
    assert moved[..., :3].mean() > SHIFT / 3


def test_a_base_of_another_task_or_other_actions_is_refused_in_one_line(
    tmp_path: Path, base_run: Path, demonstrations: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(policy_directory(base_run), changed)
    record = json.loads((changed / "policy.json").read_text())
    for name, value, words in (
        ("action_spec", record["meta"]["environment"]["action_spec"][:-1], "action_spec was"),
        ("observation_spec", {"state_keys": ["x"]}, "observation_spec.state_keys was"),
        ("task", "can", "task was can, here it is lift"),
    ):
        meta = {**record["meta"], "environment": {**record["meta"]["environment"], name: value}}
        (changed / "policy.json").write_text(json.dumps({**record, "meta": meta}))
        train = ["train", "method=bc", f"base={changed}", f"data={demonstrations}", f"runs_dir={tmp_path}"]
        assert main([*train, "name=x"]) == 2
        error = capsys.readouterr().err
        assert words in error
        assert len(error.splitlines()) == 1
    assert not (tmp_path / "x").exists()


def test_replay_options_that_do_not_fit_are_refused(
    tmp_path: Path, demonstrations: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = ["train", "method=bc", f"data={demonstrations}", f"runs_dir={tmp_path}", "name=x"]
    for arguments, words in (
        (["method.replay_ratio=0.2"], "is for method.replay=…"),
        ([f"method.replay={demonstrations}", "method.replay_ratio=1"], "choose 1 to 255"),
        ([f"method.replay={demonstrations}", "method.replay_ratio=0.001"], "is 0 windows"),
        ([f"method.replay={tmp_path / 'none'}"], "does not exist"),
    ):
        assert main([*train, *arguments]) == 2
        error = capsys.readouterr().err
        assert words in error
        assert len(error.splitlines()) == 1
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("from_files", [False, True])
def test_each_batch_has_exactly_the_asked_share_of_replay(tmp_path: Path, *, from_files: bool) -> None:
    """With the images of the same steps, from arrays and videos."""
    first = small_dataset.write(tmp_path / "first.zarr", (5, 4), ("front",))
    second = small_dataset.write(tmp_path / "second.zarr", (7,), ("front",), video=from_files, first=5)
    parts = [
        make_windows(one, 2, 3, np.ones(one.num_episodes, bool), from_files=from_files)
        for one in (first, second)
    ]
    joined = join_windows(parts)
    assert joined.groups == (9, 7)
    batches = WindowBatches(joined, (10, 6), [slice(0, 16)], CPU, 0, instructed=False)
    seen = set()
    for _ in range(30):
        numbers, mask = batches.draw()
        part = batches.part(numbers)
        assert torch.equal(part["mask"], mask)
        number = (part["state"][:, -1, 0] * 3 / 1000 + 0.001).floor().int()
        assert (number[:10] < 2).all()
        assert (number[10:] == 5).all()
        # The red channel of an image tells its step.
        steps = (part["state"][..., 0] * 3).round() % 1000
        red = part["images.front"][..., 0].float().mean((-1, -2))
        assert (red - 40 - 5 * steps).abs().max() < 4
        seen.update(numbers.tolist())
    assert seen == set(range(16))


def test_labels_are_imitated_whoever_acted_and_however_it_ended(
    tmp_path: Path, robot_rl: RunCommand, base_run: Path, shifted: Path
) -> None:
    path = tmp_path / "labels.zarr"
    collect = ("collect", f"policy={shifted}", "task.horizon=20", "episodes=2")
    robot_rl(*collect, "dagger=true", f"data={path}")
    dataset = Dataset(path)
    assert not dataset.success.any()
    learner = build_offline(BCMethod(BCConfig(batch_size=64)), inputs(base_run, path)).learner
    assert isinstance(learner, BCLearner)
    numbers, mask = learner._batches.draw()
    batch = learner._batches.part(numbers)
    state = dataset.observations()["state"]
    at = [int(np.flatnonzero((state == row).all(1))[0]) for row in batch["state"][:, -1].numpy()]
    np.testing.assert_array_equal(batch["actions"][:, 0], dataset[TARGET][at])
    assert mask[:, 0].all()


def test_a_distilled_policy_is_saved_like_any_base(
    tmp_path: Path, robot_rl: RunCommand, base_run: Path, data: Path
) -> None:
    train = ("train", "method=bc", f"base={base_run}", f"data={data}", f"runs_dir={tmp_path}", "name=x")
    robot_rl(*train, "method.steps=2", "method.successes_only=false", *SMALL)
    policy, meta = load_base(policy_directory(tmp_path / "x"))
    assert policy.spec == trained(base_run).spec
    assert meta["environment"]["task"] == "lift"


def test_prefixes_are_not_learned_from_relabelled_actions(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path / "a.zarr", small_dataset.environment(), {"states": False})
    episode = small_dataset.arrays(12, 0, success=True)
    del episode["source"]
    writer.append({**episode, TARGET: -episode["applied_action"]}, success=True, seed=0)
    dataset = Dataset(tmp_path / "a.zarr")
    for longest, refused in ((0, False), (2, True)):
        base = FlowConfig(width=16, depth=1, max_prefix=longest)
        expected = pytest.raises(ValueError, match="relabelled") if refused else nullcontext()
        with expected:
            BCMethod(BCConfig()).build_learner(DatasetContext(dataset, base, 0, CPU, Processes()))
