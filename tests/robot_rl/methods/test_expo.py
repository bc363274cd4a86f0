"""EXPO: critic target, edit loss, FASTER's noise critic, finetuning of the base, exact resumption."""

import copy
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from robot_rl.learning.imitation import BASE_TAU, bc_loss
from robot_rl.learning.off_policy import stored_base_samples
from robot_rl.methods.expo import ExpoConfig, ExpoLearner
from robot_rl.policies.bases.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.policies.bases.imitation import ImitationConfig
from robot_rl.policies.finetuned.expo import Expo, ExpoSpec
from robot_rl.policies.nets.critic import ValueSpec
from robot_rl.policies.nets.encoder import EncoderSpec
from tests.conftest import SMALL_RL, RunCommand

B, STATE, ACTION, EXECUTE, HORIZON, N = 6, 4, 3, 2, 4, 3
IMAGE = (24, 24)
SMALL = ExpoConfig(
    num_critics=4,
    hidden=[16],
    batch_size=B,
    candidates=N,
    target_candidates=2,
    critic_warmup=0,
    actor_every=1,
    init_alpha=0.1,
    bc_weight=0.0,
)


def build(config: ExpoConfig = SMALL, seed: int = 0, cameras: tuple[str, ...] = ()) -> ExpoLearner:
    torch.manual_seed(seed)
    small = DiffusionConfig(
        width=16, depth=1, train_steps=8, inference_steps=2, horizon=HORIZON, execute=EXECUTE
    )
    base = DiffusionPolicy(small, STATE, ACTION, cameras, IMAGE if cameras else None).eval()
    spec = ExpoSpec(
        encoder=EncoderSpec(STATE, cameras, IMAGE if cameras else None),
        value=ValueSpec(config.critic_loss, *config.value_range),
        hidden=tuple(config.hidden),
        scale=(0.2,) * ACTION,
        num_critics=config.num_critics,
        layer_norm=True,
        candidates=N,
        uncertainty_penalty=0.5,
        faster=config.faster,
    )
    return ExpoLearner(config, Expo(base, spec), torch.device("cpu"), seed)


def batches(kept: int = N) -> Iterator[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator) * 2 - 1

    while True:
        samples = {
            f"{prefix}{name}": uniform(B, kept, steps, ACTION)
            for prefix in ("", "next.")
            for name, steps in (("base_samples", EXECUTE), ("base_sample_noise", HORIZON))
        }
        yield {
            **samples,
            "state": uniform(B, STATE),
            "next.state": uniform(B, STATE),
            "chunk": uniform(B, HORIZON, ACTION),
            "chunk_mask": torch.ones(B, HORIZON),
            "reward": torch.tensor([0.0, 1, 0, 0, 0, 0]),
            "discount": torch.tensor([0.9, 0, 0.9, 0.9, 0.9, 0.9]),
            "success": torch.tensor([1.0, 1, 0, 0, 0, 1]),
        }


def target_minimum(learner: ExpoLearner, state: Tensor, chunks: Tensor, chosen: Tensor) -> Tensor:
    """min over the sampled critics of Q'(s, A) [B, K] for chunks [B, K, h, A]."""
    columns = [
        learner.critics.target(state, chunk.flatten(1), chosen)[..., 0].amin(0) for chunk in chunks.unbind(1)
    ]
    return torch.stack(columns, 1)


def test_critic_target_is_the_value_of_the_best_candidate() -> None:
    learner, batch = build(), next(batches())
    learner.updates = 1
    generator = torch.Generator()
    generator.set_state(learner.generator.get_state())
    with torch.no_grad():
        target = learner._td_target(batch)
        samples = stored_base_samples(batch, "next.", 2, generator).actions
        noise = torch.randn(B * 2, EXECUTE * ACTION, generator=generator).view(B, 2, -1)
        edits = []
        for k in range(2):
            x = torch.cat([batch["next.state"], samples[:, k].flatten(1)], -1)
            mean, log_std = learner.networks.edit(x)
            edit = torch.tanh(mean + log_std.exp() * noise[:, k]).view(B, EXECUTE, ACTION)
            edits.append((samples[:, k] + 0.2 * edit).clamp(-1, 1))
        chosen = learner.critics.sample_subset(generator)
        chunks = torch.cat([samples, torch.stack(edits, 1)], 1)
        best = target_minimum(learner, batch["next.state"], chunks, chosen).amax(1)
    expected = (batch["reward"] + batch["discount"] * best).clamp(0, 1)
    torch.testing.assert_close(target, expected)


def test_critic_target_during_warmup_is_the_mean_value_of_the_base_samples() -> None:
    learner, batch = build(replace(SMALL, critic_warmup=5)), next(batches())
    generator = torch.Generator()
    generator.set_state(learner.generator.get_state())
    samples = stored_base_samples(batch, "next.", 2, generator).actions
    torch.randn(B * 2, EXECUTE * ACTION, generator=generator)
    chosen = learner.critics.sample_subset(generator)
    with torch.no_grad():
        values = target_minimum(learner, batch["next.state"], samples, chosen)
        expected = (batch["reward"] + batch["discount"] * values.mean(1)).clamp(0, 1)
        torch.testing.assert_close(learner._td_target(batch), expected)


def test_critics_learn_from_the_executed_part_of_a_chunk() -> None:
    batch = next(batches())
    torch.testing.assert_close(build()._critic_action(batch), batch["chunk"][:, :EXECUTE].flatten(1))


def test_bc_weight_moves_edits_towards_successful_actions() -> None:
    learner, batch = build(replace(SMALL, actor_lr=1e-2, init_alpha=1e-6, bc_weight=1e3)), next(batches())
    batch["success"] = (torch.arange(len(batch["success"])) % 2).float()
    chunk, state = batch["base_samples"][:, 0], batch["state"]

    def distance() -> float:
        with torch.no_grad():
            edit = torch.tanh(learner.networks.edit(torch.cat([state, chunk.flatten(1)], -1))[0])
            return float(bc_loss(learner.networks.apply_edit(chunk, edit), batch))

    before = distance()
    for _ in range(40):
        learner._update_actor(batch, state)
    assert distance() < 0.9 * before


def test_edit_policy_is_trained_around_every_candidate_not_only_those_in_targets() -> None:
    learner, batch = build(replace(SMALL, bc_weight=1.0)), next(batches())
    assert SMALL.target_candidates < N
    for number in range(N):
        learner.updates = number
        torch.testing.assert_close(learner._chunks_to_edit(batch), batch["base_samples"][:, number])


def test_edit_loss_increases_the_value_of_edited_chunks() -> None:
    learner, batch = build(replace(SMALL, actor_lr=1e-2, init_alpha=1e-6)), next(batches())
    chunk, state = batch["chunk"][:, :EXECUTE], batch["state"]

    def value() -> float:
        with torch.no_grad():
            edit = torch.tanh(learner.networks.edit(torch.cat([state, chunk.flatten(1)], -1))[0])
            return float(
                learner.critics.values(state, learner.networks.apply_edit(chunk, edit).flatten(1)).mean()
            )

    before, critics = value(), {k: v.clone() for k, v in learner.critics.state_dict().items()}
    for _ in range(40):
        learner._update_actor(batch, state)
    assert value() > before + 0.01
    for name, tensor in learner.critics.state_dict().items():
        torch.testing.assert_close(tensor, critics[name], rtol=0, atol=0)


def test_noise_critic_predicts_the_value_of_the_denoised_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(SMALL, faster=True, critic_lr=1e-2)
    learner, batch = build(config), next(batches())
    with torch.no_grad():
        # Deterministic edits and a fixed pair of critics.
        learner.networks.edit.head.bias[EXECUTE * ACTION :] = -50.0
        learner.networks.edit.head.weight.zero_()
        monkeypatch.setattr(learner.critics, "sample_subset", lambda _: torch.tensor([0, 1]))
        chosen = torch.tensor([0, 1])
        expected = target_minimum(learner, batch["state"], batch["base_samples"], chosen)
    for _ in range(300):
        learner._update_noise_critic(batch, batch["state"])
    found = learner.networks.seed_values(batch["state"], batch["base_sample_noise"])
    assert (found - expected).abs().mean() < 0.2 * expected.std()


def test_base_is_finetuned_on_successes_only_and_its_moving_average_acts() -> None:
    learner = build(replace(SMALL, base_lr=1e-3))
    assert learner.imitation is not None
    assert learner.imitation.base is learner.networks.base
    before = {name: value.clone() for name, value in learner.networks.base.named_parameters()}
    failed = {**next(batches()), "success": torch.zeros(B)}
    learner._update_actor(failed, failed["state"])
    metrics = learner.imitation.update(failed)
    assert metrics["base_loss"] == 0

    learner = build(replace(SMALL, base_lr=1e-3))
    assert learner.imitation is not None
    learner.imitation.update(next(batches()))
    trained = dict(learner.imitation.trained.named_parameters())
    for name, value in learner.networks.base.named_parameters():
        moved = before[name] + BASE_TAU * (trained[name] - before[name])
        torch.testing.assert_close(value, moved.detach())
    assert any(not torch.equal(before[name], trained[name]) for name in before)


def test_base_samples_are_drawn_again_while_the_base_is_finetuned() -> None:
    learner, batch = build(replace(SMALL, base_lr=1e-3)), next(batches())
    generator = torch.Generator()
    generator.set_state(learner.generator.get_state())
    samples = learner._base_samples(batch, learner.generator, "next.")
    noise = torch.randn(B, 2, HORIZON, ACTION, generator=generator)
    expected = learner.networks.base.sample(
        {"state": batch["next.state"][:, None]}, noise=noise, num_samples=2
    )
    torch.testing.assert_close(samples.actions, expected.actions[:, :, :EXECUTE])


def test_a_trained_base_sees_the_images_that_the_critics_see() -> None:
    """An update shifts each image once."""
    learner = build(replace(SMALL, base_lr=1e-3), cameras=("front",))
    generator = torch.Generator().manual_seed(0)
    images = {
        f"{prefix}images.front": torch.randint(0, 256, (B, *IMAGE, 3), dtype=torch.uint8, generator=generator)
        for prefix in ("", "next.")
    }
    assert learner.imitation is not None
    seen: dict[str, list[Tensor]] = {"critics": [], "base": []}
    for name, encoder in (
        ("critics", learner.critics.encoder.vision[0]),
        ("base", learner.imitation.trained.vision[0]),
    ):
        encoder.register_forward_pre_hook(lambda _, inputs, name=name: seen[name].append(inputs[0]))
    learner.update({**next(batches()), **images})
    assert len(seen["base"]) == 1
    assert torch.equal(seen["base"][0], seen["critics"][0])
    assert not torch.equal(seen["base"][0], images["images.front"])


@pytest.mark.parametrize(
    "changes",
    [{}, {"bc_weight": 5.0}, {"faster": True}, {"base_lr": 1e-3}],
    ids=["expo", "imitation", "faster", "base"],
)
def test_resumed_learner_continues_exactly(changes: dict) -> None:
    config = replace(SMALL, **changes)
    learner, source = build(config), batches()
    for _ in range(3):
        learner.update(next(source))
    saved = copy.deepcopy(learner.state_dict())
    other = build(config, seed=1)
    other.load_state_dict(saved)
    for _ in range(3):
        batch = next(source)
        one, two = learner.update(batch), other.update(batch)
        assert one.keys() == two.keys()
        for name in one:
            torch.testing.assert_close(one[name], two[name], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edit_scale": 0.0}, "edit_scale"),
        ({"gripper_scale": 3.0}, "gripper_scale"),
        ({"target_candidates": 4}, "target_candidates"),
        ({"execute_fraction": 1.5}, "execute_fraction"),
        ({"alpha_min": 1.0}, "alpha_min"),
    ],
)
def test_invalid_options_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **changes)


def test_targets_have_no_entropy_and_no_option_for_it() -> None:
    assert "backup_entropy" not in {option.name for option in fields(ExpoConfig)}


def test_unsuitable_bases_are_refused_before_training(
    tmp_path: Path, robot_rl: RunCommand, demonstrations: Path, base_run: Path, act_run: Path
) -> None:
    def train(base: Path, *changes: str) -> None:
        common = ["method=expo", f"data={demonstrations}", f"runs_dir={tmp_path}", "name=run", f"base={base}"]
        robot_rl("train", *common, "method.steps=24", "method.warmup_steps=8", *SMALL_RL, *changes)

    with pytest.raises(ValueError, match="no seeds to rank"):
        train(act_run, "method.faster=true")
    with pytest.raises(ValueError, match=f"set method.n_step={ImitationConfig.horizon} or more"):
        train(base_run, f"method.n_step={ImitationConfig.horizon - 1}", "method.base_lr=1e-4")
    assert not (tmp_path / "run").exists()
    train(act_run)
