"""DSRL and DSRL-NA: critic target, distillation, temperature, exact resumption, refused options."""

import copy
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from robot_rl.data.replay_buffer import Batch
from robot_rl.learning.imitation import bc_loss
from robot_rl.methods.dsrl import DSRLConfig, DSRLLearner, NoiseSACConfig
from robot_rl.methods.dsrl_na import BACKUPS, DSRLNAConfig, DSRLNALearner
from robot_rl.policies.bases.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.policies.finetuned.dsrl import DSRL, DSRLSpec
from robot_rl.policies.nets.critic import ValueSpec
from robot_rl.policies.nets.encoder import EncoderSpec
from tests.conftest import SMALL_RL, RunCommand

STATE, ACTION, H, EXECUTE, N, B = 4, 3, 6, 2, 3, 8
CPU = torch.device("cpu")
SMALL: dict[str, Any] = {
    "hidden": [16, 16],
    "num_critics": 3,
    "critics_per_target": 3,
    "critic_warmup": 2,
    "batch_size": B,
}


def make(config: NoiseSACConfig, seed: int = 0) -> DSRLLearner | DSRLNALearner:
    torch.manual_seed(seed)
    small = DiffusionConfig(
        width=16, depth=1, train_steps=4, inference_steps=2, horizon=H, execute=EXECUTE, obs_steps=1
    )
    critic_action = "noise" if isinstance(config, DSRLConfig) else "chunk"
    spec = DSRLSpec(
        encoder=EncoderSpec(STATE),
        value=ValueSpec(config.critic_loss, *config.value_range),
        hidden=tuple(config.hidden),
        bound=config.bound,
        num_critics=config.num_critics,
        layer_norm=config.layer_norm,
        critic_action=critic_action,
        base_samples=N,
        gate=config.gate,
        uncertainty_penalty=config.uncertainty_penalty,
        repeated_noise=config.repeated_noise,
    )
    networks = DSRL(DiffusionPolicy(small, STATE, ACTION).eval(), spec)
    if isinstance(config, DSRLConfig):
        return DSRLLearner(config, networks, CPU, seed)
    assert isinstance(config, DSRLNAConfig)
    return DSRLNALearner(config, networks, CPU, seed)


def learners() -> list[NoiseSACConfig]:
    return [
        kind
        for repeated in (False, True)
        for kind in (
            DSRLConfig(**SMALL, repeated_noise=repeated),
            *[DSRLNAConfig(**SMALL, base_samples=N, backup=b, repeated_noise=repeated) for b in BACKUPS],
        )
    ]


def label(config: NoiseSACConfig) -> str:
    return f"{config.name} {getattr(config, 'backup', '')} {'repeated' if config.repeated_noise else ''}"


def batch(seed: int = 0) -> Batch:
    g = torch.Generator().manual_seed(seed)
    return {
        "state": torch.randn(B, STATE, generator=g),
        "next.state": torch.randn(B, STATE, generator=g),
        "noise": torch.randn(B, H, ACTION, generator=g),
        "chunk": torch.rand(B, EXECUTE, ACTION, generator=g) * 2 - 1,
        "chunk_mask": torch.ones(B, EXECUTE),
        "reward": torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0]),
        "discount": torch.tensor([0.0, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9]),
    }


@pytest.mark.parametrize("config", learners(), ids=label)
def test_critic_target_equals_the_equation_of_the_paper(config: NoiseSACConfig) -> None:
    learner, data = make(config), batch()
    networks, critics = learner.networks, learner.critics
    with torch.no_grad():
        for parameter in critics.target.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        got = learner._td_target(data)
        steps = 1 if config.repeated_noise else H
        eps = torch.randn(B, steps * ACTION, generator=torch.Generator().manual_seed(0))
        features = networks.encoder({"state": data["next.state"]})
        chosen = config.bound * networks.actor.sample(features, eps)[0]
        noise = chosen.view(B, steps, ACTION).repeat(1, H // steps, 1)
        if isinstance(learner, DSRLLearner):
            values = critics.target(features, noise.flatten(1))
        elif learner.config.backup == "sampled":
            made = networks.base.sample({"state": data["next.state"][:, None]}, noise=noise[:, None])
            values = critics.target(features, made.actions[:, 0, :EXECUTE].flatten(1))
        else:
            values = learner.target_noise_critic(features, chosen)
        bootstrap = data["discount"] * values.squeeze(-1).amin(0)
    torch.testing.assert_close(got, (data["reward"] + bootstrap).clamp(0, 1))
    assert got[0] == 1  # success ends the episode


@pytest.mark.parametrize("config", learners(), ids=label)
def test_resumed_learner_continues_exactly(config: NoiseSACConfig) -> None:
    straight = make(config)
    for i in range(4):
        straight.update(batch(i))
    resumed = make(config, seed=5)
    resumed.networks.base.load_state_dict(straight.networks.base.state_dict())  # read from the run
    resumed.load_state_dict(copy.deepcopy(straight.state_dict()))
    for i in range(4, 8):
        one, two = straight.update(batch(i)), resumed.update(batch(i))
        assert one.keys() == two.keys()
        assert all(torch.equal(one[name], two[name]) for name in one)
    for a, b in zip(straight.networks.parameters(), resumed.networks.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("config", learners(), ids=label)
def test_base_is_not_changed(config: NoiseSACConfig) -> None:
    learner = make(config)
    before = {name: value.clone() for name, value in learner.networks.base.state_dict().items()}
    actor = [p.clone() for p in learner.networks.actor.parameters()]
    for i in range(4):
        learner.update(batch(i))
    for name, value in learner.networks.base.state_dict().items():
        assert torch.equal(value, before[name])
    assert any(not torch.equal(a, b) for a, b in zip(actor, learner.networks.actor.parameters(), strict=True))


def test_distilled_noise_critics_predict_the_chunk_critics_for_unseen_noise() -> None:
    learner, data = make(DSRLNAConfig(**SMALL, base_samples=N)), batch()
    assert isinstance(learner, DSRLNALearner)
    networks = learner.networks
    obs = {"state": data["state"].repeat(20, 1)}
    noise = torch.randn(len(obs["state"]), H, ACTION, generator=torch.Generator().manual_seed(9))

    def error() -> float:
        with torch.no_grad():
            features = networks.encoder(obs)
            chunk = networks.decode({"state": obs["state"][:, None]}, noise)
            critic_action = learner.critics.values(features, chunk.flatten(1))
            known = learner.noise_critic(features, noise.flatten(1)).squeeze(-1)
        # Critic by critic, since they differ.
        return float((critic_action - known).square().mean() / critic_action.var(1).mean())

    before = error()
    for _ in range(600):
        learner._distill(data)
    assert error() < min(0.3, 0.2 * before)


@pytest.mark.parametrize("offset", [0.0, -1.0])
def test_temperature_floor_is_in_units_of_the_range_of_returns(offset: float) -> None:
    # With an entropy above its target alpha falls.
    config = DSRLConfig(**SMALL, reward_offset=offset, alpha_min=0.0029, actor_lr=0.1, target_entropy=-1e4)
    learner = make(config)
    low, high = config.value_range
    assert learner.soft.temperature.alpha() == pytest.approx(0.003 * (high - low), rel=1e-5)
    for i in range(8):
        learner.update(batch(i))
    assert learner.soft.temperature.alpha() == pytest.approx(0.0029 * (high - low), rel=1e-5)


def test_only_the_critics_of_chunks_learn_from_demonstrations_which_contain_no_noise() -> None:
    assert not any(option.name.startswith("demo") for option in fields(DSRLConfig))
    assert not DSRLConfig().uses_demonstrations
    assert DSRLNAConfig().uses_demonstrations


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"alpha_min": 1.0}, "alpha_min"),
        ({"bound": 0.0}, "bound"),
        ({"backup": "guessed"}, "sampled, distilled"),
        ({"base_samples": 0}, "base_samples"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DSRLNAConfig(**options)


@pytest.mark.parametrize("method", ["dsrl", "dsrl_na"])
def test_base_without_noise_input_is_refused_before_training(
    method: str, tmp_path: Path, robot_rl: RunCommand, demonstrations: Path, act_run: Path
) -> None:
    common = [f"data={demonstrations}", f"runs_dir={tmp_path}"]
    with pytest.raises(ValueError, match=r"residual, ibrl or residual_ppo"):
        robot_rl("train", f"method={method}", f"base={act_run}", "name=rl", *common, *SMALL_RL)
    assert not (tmp_path / "rl").exists()


def test_n_step_must_be_a_multiple_of_the_chunk(tmp_path: Path, robot_rl: RunCommand, base_run: Path) -> None:
    common = [f"base={base_run}", f"runs_dir={tmp_path}", "name=rl", *SMALL_RL]
    with pytest.raises(ValueError, match="multiple of 4"):
        robot_rl("train", "method=dsrl", "method.n_step=6", *common)


def test_bc_weight_moves_the_actors_chunks_towards_successful_ones() -> None:
    learner = make(DSRLNAConfig(**SMALL, base_samples=N, bc_weight=100.0, actor_lr=1e-2))
    assert isinstance(learner, DSRLNALearner)
    data = {**batch(), "success": (torch.arange(B) % 2).float()}
    networks = learner.networks
    frozen = {name: value.clone() for name, value in networks.base.state_dict().items()}

    def distance() -> float:
        with torch.no_grad():
            squashed = torch.tanh(networks.actor(data["state"])[0])
            made = networks.decode({"state": data["state"][:, None]}, networks.as_noise(squashed))
            return float(bc_loss(made, data))

    before = distance()
    for _ in range(100):
        learner._update_actor(data, data["state"])
    assert distance() < 0.9 * before
    for name, value in networks.base.state_dict().items():
        assert torch.equal(value, frozen[name]), name
