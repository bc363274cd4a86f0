"""RL from images: training of the encoder, augmentation, exact resumption, refused configurations."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from robot_rl.cli.compose import compose
from robot_rl.cli.main import load_command
from robot_rl.data.dataset import Windows
from robot_rl.envs.renderer import EnvCameraRenderer
from robot_rl.envs.vector import TaskVectorEnv
from robot_rl.factory import make_robosuite_env
from robot_rl.learning import augmentation
from robot_rl.learning.augmentation import augment_images, random_shift
from robot_rl.methods.bc import BCConfig, BCLearner
from robot_rl.methods.residual import ResidualConfig, ResidualLearner
from robot_rl.policies.bases.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.policies.finetuned.finetuned_policy import FinetunedPolicy
from robot_rl.policies.finetuned.residual import Residual, ResidualSpec
from robot_rl.policies.finetuned.residual_chunk import ResidualChunk
from robot_rl.policies.nets.encoder import EncoderSpec, ObservationBatch, ObservationEncoder
from robot_rl.policies.store import save_policy
from robot_rl.saved_policies.loading import load_networks, load_policy
from robot_rl.training import components
from tests.conftest import SMALL_RL, RunCommand
from tests.robot_rl.methods.conftest import SEEN
from tests.robot_rl.training.test_training import assert_same, final_state, metrics

STATE, ACTION, B, SIZE = 3, 2, 8, (24, 24)
BATCH = 16  # of SMALL_RL


def learner(**options: Any) -> ResidualLearner:
    torch.manual_seed(0)
    small = {"hidden": [16], "num_critics": 3, "critic_warmup": 0, "actor_every": 1, "tau": 0.25}
    config = ResidualConfig(**{**small, **options})
    base = DiffusionConfig(horizon=2, execute=2, width=8, depth=1, train_steps=4, inference_steps=2)
    spec = ResidualSpec(EncoderSpec(STATE, ("front",), SIZE), ACTION, (16,), (0.5,) * ACTION)
    networks = Residual(DiffusionPolicy(base, STATE, ACTION), spec)
    torch.nn.init.normal_(networks.actor.net.head.weight, std=0.1)
    return ResidualLearner(config, networks, torch.device("cpu"), seed=0)


def batch(seed: int = 0) -> dict[str, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    made = {
        "action": torch.rand(B, ACTION, generator=draws),
        "reward": torch.rand(B, generator=draws),
        "discount": torch.full((B,), 0.9),
    }
    for prefix in ("", "next."):
        made[f"{prefix}state"] = torch.randn(B, STATE, generator=draws)
        made[f"{prefix}base"] = torch.rand(B, ACTION, generator=draws)
        shape = (B, *SIZE, 3)
        made[f"{prefix}images.front"] = torch.randint(0, 256, shape, dtype=torch.uint8, generator=draws)
    return made


def weights(module: torch.nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def same(one: list[Tensor], two: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("who", ["critics", "actor"])
def test_encoder_is_trained_by_the_critic_loss_only(who: str) -> None:
    lr = {"critic_lr": 1e-3, "actor_lr": 0.0} if who == "critics" else {"critic_lr": 0.0, "actor_lr": 1e-3}
    one = learner(**lr)
    encoder, actor = weights(one.critics.encoder), weights(one.actor)
    assert encoder
    for seed in range(3):
        one.update(batch(seed))
    assert same(weights(one.critics.encoder), encoder) is (who == "actor")
    assert same(weights(one.actor), actor) is (who == "critics")


def test_target_encoder_is_a_moving_average() -> None:
    one = learner(critic_lr=1e-2)
    before = weights(one.critics.target_encoder)
    one.update(batch())
    followed = [torch.lerp(a, b, 0.25) for a, b in zip(before, weights(one.critics.encoder), strict=True)]
    torch.testing.assert_close(weights(one.critics.target_encoder), followed)
    assert not same(before, followed)


def test_image_augmentation_depends_only_on_the_generator() -> None:
    data = batch()
    data["next.images.front"] = data["images.front"].clone()
    first, again, other = (augment_images(data, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert_same(first, again)
    for name in data:
        moves = name.endswith("images.front")
        assert torch.equal(first[name], data[name]) is not moves
        assert torch.equal(first[name], other[name]) is not moves
    # Both observations move on their own.
    assert not torch.equal(first["images.front"], first["next.images.front"])


def test_batch_without_images_draws_no_random_numbers() -> None:
    draws = torch.Generator().manual_seed(0)
    before = draws.get_state()
    data = {name: value for name, value in batch().items() if "images" not in name}
    assert augment_images(data, draws) is data
    assert torch.equal(draws.get_state(), before)


def test_behaviour_cloning_shifts_each_image_once() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(B, *SIZE, 3), dtype=np.uint8)
    windows = Windows(
        state=rng.normal(size=(B, 1, STATE)).astype(np.float32),
        actions=rng.uniform(-1, 1, (B, 2, ACTION)).astype(np.float32),
        mask=np.ones((B, 2), np.float32),
        rows=np.arange(B)[:, None],
        images={"front": images},
    )
    base = DiffusionConfig(horizon=2, execute=2, width=8, depth=1, train_steps=4, inference_steps=2)
    policy = DiffusionPolicy(base, STATE, ACTION, ("front",), SIZE)
    cloning = BCLearner(BCConfig(batch_size=B), policy, windows, torch.device("cpu"), seed=0)
    drawn = np.random.default_rng([0, 2]).integers(B, size=B)
    shifted = random_shift(torch.from_numpy(images[drawn]), torch.Generator().manual_seed(0))
    seen: list[Tensor] = []
    policy.vision[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    cloning.update()
    assert len(seen) == 1
    assert torch.equal(seen[0], shifted)


def test_resumed_learner_continues_exactly() -> None:
    one, other = learner(), learner()
    for seed in range(2):
        one.update(batch(seed))
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for seed in range(2, 4):
        assert_same(one.update(batch(seed)), other.update(batch(seed)))
    assert_same(one.state_dict(), other.state_dict())


def command(method: str, base: Path, data: Path, runs: Path, name: str, *more: str) -> list[str]:
    small = [*SMALL_RL, "task.horizon=15", "method.warmup_steps=8", "method.critic_warmup=4", "log_every=8"]
    run = [f"method={method}", f"base={base}", f"data={data}", f"runs_dir={runs}", f"name={name}"]
    return [*run, *small, *SEEN, *more]


@pytest.mark.full
@pytest.mark.parametrize("method", ["residual", "dsrl_na"])
def test_resumed_run_equals_an_uninterrupted_one(
    method: str, tmp_path: Path, robot_rl: RunCommand, seen: Path, seeing: Path
) -> None:
    for name, steps in (("straight", 48), ("resumed", 26), ("resumed", 48)):
        robot_rl("train", *command(method, seeing, seen, tmp_path, name, f"method.steps={steps}"))
    straight = final_state(tmp_path / "straight")
    images = straight["replay"]["data.images.agentview"]
    assert images.dtype == torch.uint8
    assert images.shape[2:] == (32, 32, 3)
    assert images.float().std() > 5
    assert_same(straight, final_state(tmp_path / "resumed"))
    assert metrics(tmp_path / "straight") == metrics(tmp_path / "resumed")
    load_policy(tmp_path / "straight")


METHODS = {
    "residual": ("method.encoder=vit",),
    "residual_chunk": (),
    "dsrl": (),
    "dsrl_na": (),
    "expo": (),
    "expo faster": ("method.faster=true",),
    "expo base": ("method.base_lr=1e-4",),
    "ibrl": (),
    "rlpd": (),
}


# All off-policy methods share the line that augments; these three differ in what looks.
AUGMENTED = ("residual", "dsrl", "expo base")


@pytest.mark.parametrize(
    "name",
    [*AUGMENTED, *(pytest.param(name, marks=pytest.mark.full) for name in METHODS if name not in AUGMENTED)],
)
def test_every_method_augments_all_images_of_a_batch(
    name: str, tmp_path: Path, robot_rl: RunCommand, seen: Path, seeing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Tensor] = []
    forward = ObservationEncoder.forward

    def watched(self: ObservationEncoder, obs: ObservationBatch) -> Tensor:
        looks.extend(value for key, value in obs.items() if "images" in key)
        return forward(self, obs)

    encode = DiffusionPolicy._encode

    def watched_base(self: DiffusionPolicy, obs: ObservationBatch) -> Tensor:
        looks.extend(value for key, value in obs.items() if "images" in key)
        return encode(self, obs)

    monkeypatch.setattr(ObservationEncoder, "forward", watched)
    monkeypatch.setattr(DiffusionPolicy, "_encode", watched_base)
    monkeypatch.setattr(augmentation, "random_shift", lambda images, _: torch.full_like(images, 7))
    method = name.split()[0]
    robot_rl(
        "train",
        *command(method, seeing, seen, tmp_path, "run", "method.steps=20", *METHODS[name]),
        *(["method.n_step=12"] if method != "dsrl" else []),
    )
    learned = [images for images in looks if len(images) == BATCH]
    assert len(learned) >= 2 * 12
    assert all((images == 7).all() for images in learned)
    acted = [images for images in looks if len(images) != BATCH]
    assert not any((images == 7).all() for images in acted)


@pytest.mark.full
def test_only_the_method_or_only_the_base_uses_images(
    tmp_path: Path, robot_rl: RunCommand, seen: Path, seeing: Path, base_run: Path
) -> None:
    """Demonstrations may have more cameras than are used."""
    looks: dict[str, tuple[Any, Any]] = {}
    for name, base, *more in (
        ("method", base_run, "method=residual_chunk", "method.steps=20"),
        ("base", seeing, "method=dsrl_na", "method.steps=20", "method.encoder=state"),
        ("neither", base_run, "method=residual", "method.steps=20", "task.cameras=[]"),
    ):
        robot_rl("train", *command("residual", base, seen, tmp_path, name, *more))
        networks, _ = load_networks(tmp_path / name)
        assert isinstance(networks, FinetunedPolicy)
        looks[name] = networks.spec.encoder.cameras, networks.base.spec.cameras
        load_policy(tmp_path / name)
    both = ("agentview",)
    assert looks == {"method": (both, ()), "base": ((), both), "neither": ((), ())}
    kept = {name: "data.images.agentview" in final_state(tmp_path / name)["replay"] for name in looks}
    assert kept == {"method": True, "base": True, "neither": False}


@pytest.mark.full
@pytest.mark.parametrize("method", ["residual", "ibrl", "rlpd", "dsrl", "residual_ppo"])
def test_training_from_states_renders_only_images_that_the_base_reads(
    method: str, tmp_path: Path, robot_rl: RunCommand, seeing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same run as with all images, to the bit, also if it is resumed."""
    drawn = []
    frame = EnvCameraRenderer.frame

    def watched(self: EnvCameraRenderer) -> np.ndarray:
        drawn.append(1)
        return frame(self)

    monkeypatch.setattr(EnvCameraRenderer, "frame", watched)
    if method == "residual_ppo":
        options = ["num_envs=2", "rollout_steps=6", "minibatches=2", "epochs=2"]
    else:
        options = [option.removeprefix("method.") for option in SMALL_RL if option.startswith("method.")]
        options += ["encoder=state", "demo_ratio=0", "warmup_steps=8", "critic_warmup=4"]

    def train(name: str, *steps: int) -> int:
        drawn.clear()
        run = [f"method={method}", f"base={seeing}", f"runs_dir={tmp_path}", f"name={name}", *SEEN]
        run += ["threads=1", "task.horizon=15", "log_every=8", *(f"method.{option}" for option in options)]
        for until in steps:
            robot_rl("train", *run, f"method.steps={until}")
        return len(drawn)

    few = train("few", 36)
    train("resumed", 22, 36)
    monkeypatch.setattr(TaskVectorEnv, "draw_next", lambda *_: None)
    # One frame of four, and those of resets.
    assert few < 0.6 * train("all", 36)
    state = final_state(tmp_path / "few")
    assert_same(state, final_state(tmp_path / "resumed"))
    other = final_state(tmp_path / "all")
    for tree in (state, other):
        # The images of steps that are not read, and what else only acting knows.
        del tree["episodes"]
    assert_same(state, other)
    assert metrics(tmp_path / "few") == metrics(tmp_path / "all")


@pytest.mark.full
def test_imagination_learns_states_around_a_base_that_sees(
    tmp_path: Path, robot_rl: RunCommand, seen: Path, seeing: Path
) -> None:
    small = ("refit_every=2", "pool=2", "first_updates=4", "fit_updates=2", "hidden=[16]")
    robot_rl(
        "train",
        *command("residual_chunk", seeing, seen, tmp_path, "run", "method.steps=64", "method.encoder=state"),
        *("imagination=state", "device=cpu", *(f"imagination.{option}" for option in small)),
    )
    records = (tmp_path / "run" / "imagination.jsonl").read_text().splitlines()
    assert "gap" in json.loads(records[-1])
    state = final_state(tmp_path / "run")
    assert "data.images.agentview" not in state["replay"]
    samples, lengths = (state["imagination"][name] for name in ("base_samples", "lengths"))
    assert len(samples) == sum(lengths) + len(lengths)
    assert state["imagination"]["values"]["networks"]


def test_unsuitable_images_are_refused_before_training(
    tmp_path: Path,
    robot_rl: RunCommand,
    demonstrations: Path,
    seen: Path,
    seeing: Path,
    base_run: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(said: str, base: Path, data: Path, *more: str, method: str = "residual") -> None:
        with pytest.raises(ValueError, match=said) as caught:
            robot_rl("train", *command(method, base, data, tmp_path, "run", "method.steps=20", *more))
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "run").exists()

    refused(r"add task\.cameras=\[agentview\]", seeing, seen, "task.cameras=[]")
    refused(r"add task\.cameras=\[frontview,agentview\]", seeing, seen, "task.cameras=[frontview]")
    refused(r"observation_spec\.image_size was", seeing, seen, "task.image_size=[40,40]")
    refused("the images of agentview are not used", base_run, seen, "method.encoder=state")
    refused(r"has no images of agentview.*task\.cameras=\[agentview\]", base_run, demonstrations)
    refused("choose conv, spatial, vit, base or state", seeing, seen, "method.encoder=resnet")
    imagined = ("imagination=state", "device=cpu")
    refused("predicts states and no images: .* set method.encoder=state", seeing, seen, *imagined)
    for method in ("dsrl_na", "residual"):
        said = "the base uses images or is a server, .*: use method=residual_chunk or expo"
        refused(said, seeing, seen, "method.encoder=state", *imagined, method=method)
    expansion = (*imagined, "method.encoder=state", "imagination.returns=expansion")
    refused("branches .* have one chunk: leave out", seeing, seen, *expansion, method="residual_chunk")
    monkeypatch.setattr(components, "memory_bytes", lambda _: (3 * 25 + 96) * 3200)
    refused(r"set method\.replay_capacity=2\d or less", seeing, seen)
    ppo = ["method=residual_ppo", f"base={base_run}", f"runs_dir={tmp_path}", "name=run", *SEEN]
    with pytest.raises(ValueError, match="residual_ppo, which would learn from the state alone"):
        robot_rl("train", *ppo)


def test_two_arms_train_one_policy(tmp_path: Path, robot_rl: RunCommand) -> None:
    """One policy for both arms and grippers, on a task without expert or demonstrations."""
    keys = ("robot0_right_eef_pos", "robot0_left_eef_pos", "pot_pos")
    task = [
        "task=lift",
        "task.name=two_arm_lift",
        "task.env=TwoArmLift",
        "task.robots=Baxter",
        f"task.state_keys=[{','.join(keys)}]",
    ]
    config = compose(load_command("train"), [*task, "method=residual", "base=uniform"])
    env = make_robosuite_env(config.task)
    assert len(env.action_spec) == 14
    small = DiffusionConfig(horizon=4, execute=2, width=16, depth=1, train_steps=4, inference_steps=2)
    save_policy(DiffusionPolicy(small, 9, 14), tmp_path / "base", {"environment": env.describe()})
    env.close()
    scales = ["method.residual_scale=0.5", "method.gripper_scale=0.25"]
    alone = ["method.demo_ratio=0", "method.steps=30", "method.warmup_steps=10"]
    run = [f"base={tmp_path / 'base'}", f"runs_dir={tmp_path}", "name=run"]
    robot_rl("train", "method=residual_chunk", *task, *run, *scales, *alone, *SMALL_RL)
    state = final_state(tmp_path / "run")
    assert state["learner"]["updates"] == 10 + 20
    assert state["replay"]["data.action"].shape[2:] == (14,)
    networks, _ = load_networks(tmp_path / "run")
    assert isinstance(networks, ResidualChunk)
    assert networks.spec.scale == (0.5,) * 12 + (0.25,) * 2
    assert networks.actor.net.head.weight.abs().max() > 0
