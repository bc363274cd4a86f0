"""method.encoder=base: RL from the frozen features of a base policy, which are stored instead of images."""

import json
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from robot_rl.data.dataset import Dataset
from robot_rl.learning.augmentation import augment_images
from robot_rl.learning.off_policy import OffPolicyLearner
from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.finetuned.finetuned_policy import FinetunedPolicy
from robot_rl.policies.nets.encoder import EncoderSpec
from robot_rl.policies.nets.vision import ConvEncoder
from robot_rl.policies.store import fingerprint
from robot_rl.report import feature_videos
from robot_rl.report.feature_decoder import example_frames, fit_decoder
from robot_rl.report.imagination_page import write_imagination_report
from robot_rl.saved_policies.loading import load_networks, load_policy
from tests.conftest import SMALL_BASE, SMALL_RL, RunCommand
from tests.robot_rl.hil.training import arguments
from tests.robot_rl.policy_client.test_training import serve
from tests.robot_rl.training.test_training import assert_same, final_state, metrics

MEASURED = (
    "task.cameras=[agentview]",
    "task.image_size=[32,32]",
    "task.state_keys=[robot0_eef_pos,robot0_gripper_qpos]",
)
STATE, FEATURES, COPIES = 5, 2 * (5 + 128), 3
"""Sizes of a state and of the features of two frames; stored versions of them."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, robot_rl: RunCommand) -> Path:
    """Two demonstrations of Lift, with what a robot measures and one camera."""
    path = tmp_path_factory.mktemp("seen") / "lift.zarr"
    robot_rl("collect", f"data={path}", "episodes=2", "noise=0.1", *MEASURED)
    return path


def train_base(robot_rl: RunCommand, seen: Path, runs: Path, *more: str) -> Path:
    short = ("method.steps=2", "method.batch_size=8", "threads=1", "base.obs_steps=2", *SMALL_BASE)
    run = [f"data={seen}", f"runs_dir={runs}", "name=base"]
    robot_rl("train", "method=bc", *run, *short, *MEASURED, *more)
    return runs / "base"


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory, robot_rl: RunCommand, seen: Path) -> Path:
    """Run of a small base that looks at two frames."""
    return train_base(robot_rl, seen, tmp_path_factory.mktemp("seeing"))


def command(method: str, base: Path, data: Path, runs: Path, name: str, *more: str) -> list[str]:
    small = [*SMALL_RL, "task.horizon=15", "method.warmup_steps=8", "method.critic_warmup=4", "log_every=8"]
    run = [f"method={method}", f"base={base}", f"data={data}", f"runs_dir={runs}", f"name={name}"]
    return [*run, "method.encoder=base", *small, *MEASURED, *more]


def test_resumed_run_equals_an_uninterrupted_one(
    tmp_path: Path, robot_rl: RunCommand, seen: Path, seeing: Path
) -> None:
    for name, steps in (("straight", 48), ("resumed", 26), ("resumed", 48)):
        robot_rl("train", *command("dsrl_na", seeing, seen, tmp_path, name, f"method.steps={steps}"))
    straight = final_state(tmp_path / "straight")
    assert_same(straight, final_state(tmp_path / "resumed"))
    assert metrics(tmp_path / "straight") == metrics(tmp_path / "resumed")
    stored = straight["replay"]
    assert not [name for name in stored if "image" in name]
    rows = stored["data.features"][:, : int(stored["count"].min())]
    assert rows.shape[2:] == (COPIES, FEATURES)
    assert rows.std() > 0.1
    # The versions differ where images were shifted.
    assert not torch.equal(rows[:, :, 0], rows[:, :, 1])

    networks, _ = load_networks(tmp_path / "straight")
    assert isinstance(networks, FinetunedPolicy)
    assert stored["features_of"] == fingerprint(networks.base)
    norm = networks.encoder.feature_norm
    assert norm is not None
    assert norm.mean.abs().max() > 0.1  # fitted to the demonstrations
    load_policy(tmp_path / "straight")


@pytest.mark.full
def test_with_a_delay_the_features_are_of_the_observation_that_the_chunk_was_made_from(
    tmp_path: Path, robot_rl: RunCommand, seen: Path
) -> None:
    delay, execute = 2, 4
    base = train_base(robot_rl, seen, tmp_path, "base.horizon=10")
    late = ("asynchronous=naive", f"delay={delay}")
    for name, steps in (("straight", 48), ("resumed", 26), ("resumed", 48)):
        more = (*late, f"method.steps={steps}")
        robot_rl("train", *command("residual_chunk", base, seen, tmp_path, name, *more))
    final = final_state(tmp_path / "straight")
    assert_same(final, final_state(tmp_path / "resumed"))
    stored = {name: values[0] for name, values in final["replay"].items() if name.startswith("data.")}
    networks, _ = load_networks(base)
    assert isinstance(networks, BasePolicy)
    # Of the newer one of two frames the base's features begin with the state.
    states = networks.features_of_state(stored["data.state"])
    newest = stored["data.features"][:, 0, FEATURES // 2 :][:, :STATE]
    ends = stored["data.last"].nonzero().flatten().tolist()
    begin, end = 0, ends[0]
    rows = range(begin, end)
    requested = [0 if row < execute else row - delay - row % execute for row in rows]
    torch.testing.assert_close(newest[begin:end], states[requested])
    assert not torch.equal(states[0], states[2])


@pytest.mark.full
def test_an_on_policy_rollout_holds_the_features_of_each_step(
    tmp_path: Path, robot_rl: RunCommand, seeing: Path
) -> None:
    for name, steps in (("straight", 72), ("resumed", 50), ("resumed", 72)):
        run = ["method=residual_ppo", f"base={seeing}", f"runs_dir={tmp_path}", f"name={name}"]
        small = ["method.num_envs=2", "method.rollout_steps=16", "method.hidden=[16]", "task.horizon=15"]
        more = ["method.encoder=base", f"method.steps={steps}", "log_every=20", "threads=1"]
        robot_rl("train", *run, *small, *more, *MEASURED)
    straight = final_state(tmp_path / "straight")
    assert_same(straight, final_state(tmp_path / "resumed"))
    stored = straight["rollout"]["data"]
    assert not [name for name in stored if "image" in name]
    assert stored["features"].shape == (17, 2, 1, FEATURES)
    assert stored["features"].std(0).max() > 0.1
    ended = stored["done"].nonzero()
    last = stored["final.features"][ended]
    assert len(last) > 0
    # An episode's last features, and not those of the one that begins in the next row.
    following = stored["features"][1:][ended]
    assert not np.array_equal(last, following)
    networks, _ = load_networks(tmp_path / "straight")
    assert isinstance(networks, FinetunedPolicy)
    assert networks.encoder.spec.features == FEATURES
    load_policy(tmp_path / "straight")


@pytest.mark.parametrize(
    "method",
    [
        "residual",
        *(
            pytest.param(name, marks=pytest.mark.full)
            for name in ("residual_chunk", "expo", "dsrl", "ibrl", "rlpd")
        ),
    ],
)
def test_updates_process_no_image(
    method: str,
    tmp_path: Path,
    robot_rl: RunCommand,
    seen: Path,
    seeing: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    updating, looks = [], []
    update, forward = OffPolicyLearner.update, ConvEncoder.forward

    def watched_update(self: OffPolicyLearner, batch: dict[str, Tensor], rows: int | None = None) -> object:
        updating.append(True)
        assert not [name for name in batch if "images" in name]
        return update(self, batch, rows)

    def watched(self: ConvEncoder, images: Tensor) -> Tensor:
        looks.append(len(images))
        return forward(self, images)

    monkeypatch.setattr(OffPolicyLearner, "update", watched_update)
    monkeypatch.setattr(ConvEncoder, "forward", watched)
    robot_rl("train", *command(method, seeing, seen, tmp_path, "run", "method.steps=24"))
    assert updating
    assert looks
    # Two environments or demonstrations of two frames, in each of two more versions; a batch has 16 rows.
    assert max(looks) <= 2 * 2 * (COPIES - 1)
    load_policy(tmp_path / "run")


@pytest.mark.full
def test_actor_of_another_process_sends_features(
    tmp_path: Path, robot_rl: RunCommand, seen: Path, seeing: Path
) -> None:
    more = ("method.steps=40", "hil.lockstep=true", "task.horizon=20", "method.encoder=base", *MEASURED)
    robot_rl("train", *arguments(seen, seeing, tmp_path, "run", *more))
    state = final_state(tmp_path / "run")
    assert state["learner"]["updates"] > 10
    stored = state["replay"]
    assert not [name for name in stored if "image" in name]
    assert stored["data.features"].shape[2:] == (COPIES, FEATURES)
    assert stored["data.features"][0, : int(stored["count"][0])].std() > 0.1


@pytest.mark.full
def test_features_of_another_base_are_refused(
    tmp_path: Path, robot_rl: RunCommand, seen: Path, seeing: Path
) -> None:
    base = train_base(robot_rl, seen, tmp_path)
    robot_rl("train", *command("residual", base, seen, tmp_path, "run", "method.steps=16"))
    before = final_state(tmp_path / "run")
    other = train_base(robot_rl, seen, tmp_path / "other", "seed=1")
    base.rename(tmp_path / "old")
    other.rename(base)
    with pytest.raises(ValueError, match=r"the run began with another base policy") as caught:
        robot_rl("train", *command("residual", base, seen, tmp_path, "run", "method.steps=24"))
    assert "\n" not in str(caught.value)
    assert_same(before, final_state(tmp_path / "run"))


@pytest.mark.full
def test_what_has_no_features_is_refused(
    tmp_path: Path, robot_rl: RunCommand, seen: Path, seeing: Path
) -> None:
    def refused(said: str, method: str, *more: str) -> None:
        with pytest.raises(ValueError, match=said) as caught:
            robot_rl("train", *command(method, seeing, seen, tmp_path, "run", "method.steps=20", *more))
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "run").exists()

    refused(r"method\.faster=true ranks seeds", "expo", "method.faster=true")
    refused(r"method\.base_lr changes the base's features", "expo", "method.base_lr=1e-5")
    imagined = ("device=cpu", "imagination=latent")
    refused("not features of a base: use imagination=latent", "residual_chunk", "imagination=state")
    refused("has to see: add method.encoder=base", "residual_chunk", "method.encoder=state", *imagined)
    refused("has to see: add method.encoder=base", "residual_chunk", "method.encoder=conv", *imagined)
    refused("gives no features", "residual", "base=uniform", "task.cameras=[]", *imagined)
    refused("cannot act and learn at imagined states", "rlpd", *imagined)
    refused(
        "imagination.latent=0: choose 1 or more", "residual", "imagination.latent=0", "device=cpu", *imagined
    )
    refused("gives no features", "rlpd", "base=uniform", "task.cameras=[]")
    refused("frontview are not used", "rlpd", "task.cameras=[agentview,frontview]")
    refused("method.feature_copies=0", "rlpd", "method.feature_copies=0")
    on_policy = [f"base={seeing}", f"runs_dir={tmp_path}", *MEASURED, "method.encoder=conv"]
    with pytest.raises(ValueError, match=r"method\.encoder=conv: choose state or base"):
        robot_rl("train", "method=residual_ppo", *on_policy)


@pytest.mark.full
def test_a_served_base_of_three_frames_is_refused_with_imagined_features(
    tmp_path: Path, robot_rl: RunCommand, seen: Path
) -> None:
    server, url = serve(train_base(robot_rl, seen, tmp_path, "base.obs_steps=3"))
    imagined = (f"base.url={url}", "imagination=latent", "device=cpu", "method.steps=20")
    with (
        closing(server),
        pytest.raises(ValueError, match="observes 3 steps, imagination=latent"),
    ):
        robot_rl("train", *command("residual_chunk", Path("remote"), seen, tmp_path, "run", *imagined))


@pytest.mark.full
def test_a_resumed_run_that_imagines_features_equals_an_uninterrupted_one(
    tmp_path: Path, robot_rl: RunCommand, seen: Path, seeing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = (
        "refit_every=2", "pool=2", "first_updates=4", "fit_updates=2", "hidden=[16]", "branches=8", "latent=6"
    )  # fmt: skip
    imagined = ("device=cpu", "imagination=latent", *(f"imagination.{option}" for option in small))
    for name, steps in (("straight", 72), ("resumed", 50), ("resumed", 72)):
        more = (f"method.steps={steps}", *imagined)
        robot_rl("train", *command("residual_chunk", seeing, seen, tmp_path, name, *more))
    straight = final_state(tmp_path / "straight")
    assert_same(straight, final_state(tmp_path / "resumed"))
    # The base's features begin with the state, which the model does not predict a second time.
    model, images = straight["imagination"]["model"], FEATURES // 2 - STATE
    assert model["shape"]["features_of"] == straight["replay"]["features_of"]
    assert model["networks"]["basis"].shape == (images, 6)
    # An episode's vectors are the state and the features of its newest frame.
    assert straight["imagination"]["states"].shape[1] == STATE + images
    records = (tmp_path / "straight" / "imagination.jsonl").read_text().splitlines()
    assert "gap" in json.loads(records[-1])
    monkeypatch.setattr(feature_videos, "fit_decoder", partial(fit_decoder, updates=2))
    page = write_imagination_report(tmp_path / "straight").read_text()
    assert "Error over the length of a rollout" in page
    assert "drawn by a decoder of the features" in page
    assert page.count("<video") >= 1


@pytest.mark.full
def test_a_decoder_draws_the_images_that_features_are_of(seen: Path, seeing: Path) -> None:
    base, _ = load_networks(seeing)
    assert isinstance(base, BasePolicy)
    images = Dataset(seen).observations()["images.agentview"]
    vectors, _ = example_frames(seen, base)
    error = []
    for updates in (1, 60):
        drawn = fit_decoder(seen, base, updates=updates).draw(vectors)
        assert drawn.shape == (len(vectors), 32, 32, 3)
        error.append(np.abs(drawn.astype(float) - images[: len(drawn)]).mean())
    assert error[1] < 0.5 * error[0]


def test_one_of_the_stored_versions_is_drawn_for_each_row() -> None:
    features = torch.arange(3.0).view(1, 3, 1).expand(200, 3, 2)
    drawn = augment_images({"features": features}, torch.Generator().manual_seed(0))["features"]
    assert drawn.shape == (200, 2)
    assert set(drawn[:, 0].tolist()) == {0.0, 1.0, 2.0}


def test_acting_encodes_each_image_once(seeing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The features that a policy reads are those of which the base samples its chunk."""
    base, _ = load_networks(seeing)
    assert isinstance(base, BasePolicy)
    rng = np.random.default_rng(0)
    frames = [
        {
            "state": rng.normal(size=(2, STATE)).astype(np.float32),
            "images.agentview": rng.integers(256, size=(2, 32, 32, 3), dtype=np.uint8),
        }
        for _ in range(6)
    ]
    encoder = EncoderSpec(STATE, features=FEATURES, feature_copies=COPIES)
    alone, reading = ActingPolicy(base, 2), ActingPolicy(base, 2, encoder=encoder)
    for policy in (alone, reading):
        policy.reset([0, 1], [3, 4])
    looks: list[int] = []
    encode = type(base).features

    def watched(self: BasePolicy, obs: dict[str, Tensor]) -> Tensor:
        looks.append(len(obs["state"]))
        return encode(self, obs)

    expected = [alone.act(frame).action for frame in frames]
    monkeypatch.setattr(type(base), "features", watched)
    for frame, action in zip(frames, expected, strict=True):
        np.testing.assert_array_equal(reading.act(frame).action, action)
    assert looks == [2, 2]  # where a chunk of four steps begins
    looks.clear()
    stored = reading.act(frames[0], with_base_samples=True).replay_fields()["features"]
    assert looks == [2, 2 * (COPIES - 1)]
    history = {key: np.stack([frames[-1][key], frames[0][key]], 1) for key in frames[0]}
    now = base.features({key: torch.from_numpy(value) for key, value in history.items()})
    np.testing.assert_array_equal(stored[:, 0], now.numpy())
