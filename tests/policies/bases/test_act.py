"""ACT policy: learning, style variable (CVAE), no noise input, loss and padding."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from robot_rl.policies.bases.act import ACTConfig, ACTPolicy
from robot_rl.policies.bases.base_policy import is_steered_by_noise

SMALL = ACTConfig(horizon=4, execute=2, obs_steps=2, width=32, heads=2, layers=1, latent_size=4)
STATE, ACTION = 3, 2


def make(config: ACTConfig = SMALL) -> ACTPolicy:
    torch.manual_seed(0)
    return ACTPolicy(config, STATE, ACTION)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def observation(batch: int) -> dict[str, Tensor]:
    return {"state": torch.randn(batch, SMALL.obs_steps, STATE, generator=seeded(7))}


def demonstrations(batch: int) -> dict[str, Tensor]:
    actions = torch.rand(batch, SMALL.horizon, ACTION, generator=seeded(8)) * 2 - 1
    return {**observation(batch), "actions": actions, "mask": torch.ones(batch, SMALL.horizon)}


def test_policy_learns_chunks_from_the_newest_state() -> None:
    """Actions rise with the step in the chunk, with a slope given by the newest of two states."""
    torch.manual_seed(0)
    policy = ACTPolicy(SMALL, 1, 1)
    policy.fit_normalizers(torch.tensor([[-1.0], [1.0]]), torch.tensor([[-1.0], [1.0]]))
    optimizer = torch.optim.Adam(policy.parameters(), 3e-3)
    generator = seeded(0)
    slope = torch.arange(1, 5) / 4
    for _ in range(200):
        state = torch.rand(64, 2, 1, generator=generator) * 2 - 1
        batch = {"state": state, "actions": state[:, -1:] * slope[:, None], "mask": torch.ones(64, 4)}
        optimizer.zero_grad()
        policy.loss(batch, generator).backward()
        optimizer.step()

    state = torch.rand(100, 2, 1, generator=generator) * 2 - 1
    actions = policy.sample({"state": state}).actions[:, 0]
    assert (actions - state[:, -1:] * slope[:, None]).abs().mean() < 0.05


def test_style_variable_separates_two_modes() -> None:
    """Half the demonstrations go left and half go right; given the style, the decoder knows which."""
    torch.manual_seed(0)
    policy = ACTPolicy(replace(SMALL, obs_steps=1, kl_weight=0.01), 1, 1)
    optimizer = torch.optim.Adam(policy.parameters(), 3e-3)
    generator = seeded(0)
    state, mask = torch.zeros(64, 1, 1), torch.ones(64, 4)
    for _ in range(100):
        side = torch.randint(0, 2, (64, 1, 1), generator=generator) * 1.6 - 0.8
        batch = {"state": state, "actions": side.expand(-1, 4, -1), "mask": mask}
        optimizer.zero_grad()
        policy.loss(batch, generator).backward()
        optimizer.step()

    for side in (-0.8, 0.8):
        style, _ = policy.posterior(
            state[:1], torch.full((1, 4, 1), side), torch.ones(1, 4, dtype=torch.bool)
        )
        actions = policy.decoder(state[:1], style)
        torch.testing.assert_close(actions, torch.full_like(actions, side), rtol=0, atol=0.15)


def test_noise_is_refused_and_the_probe_finds_no_steering() -> None:
    policy = make()
    assert policy.spec.noise_shape is None
    with pytest.raises(ValueError, match="takes no noise"):
        policy.sample(observation(3), noise=torch.zeros(3, 1, 4, 2))
    with pytest.raises(ValueError, match="takes no noise"):
        policy.draw_noise(3)
    assert not is_steered_by_noise(policy, observation(3))


def test_all_samples_of_an_observation_are_equal() -> None:
    chunk = make().sample(observation(5), num_samples=3, generator=seeded(1))
    assert chunk.noise is None
    assert chunk.actions.shape == (5, 3, 4, 2)
    assert chunk.actions.dtype == torch.float32
    assert not chunk.actions.requires_grad
    assert torch.equal(
        chunk.actions, make().sample(observation(5), generator=seeded(2)).actions.expand(-1, 3, -1, -1)
    )


@pytest.mark.parametrize("training", [True, False])
def test_observations_of_a_batch_are_independent(training: bool) -> None:
    policy = make().train(training)
    obs = observation(5)
    together = policy.sample(obs).actions
    for b in range(5):
        alone = policy.sample({"state": obs["state"][b : b + 1]}).actions
        torch.testing.assert_close(together[b : b + 1], alone, rtol=0, atol=1e-5)


def test_actions_stay_in_range_for_extreme_states() -> None:
    policy = make()
    policy.fit_normalizers(torch.randn(50, STATE), torch.rand(50, ACTION) * 2 - 1)
    actions = policy.sample({"state": torch.full((2, SMALL.obs_steps, STATE), 1e6)}).actions
    assert actions.isfinite().all()
    assert actions.abs().max() <= 1.0


@pytest.mark.parametrize("shape", [(3, 1, 3), (3, 2, 4), (2, 3)])
def test_observation_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="trained on"):
        make().sample({"state": torch.zeros(shape)})


def test_loss_is_the_same_for_the_same_seed() -> None:
    policy = make()
    losses = [policy.loss(demonstrations(6), seeded(seed)).item() for seed in (1, 1, 2)]
    assert losses[0] == losses[1] != losses[2]


def test_padding_does_not_affect_the_loss() -> None:
    policy = make()
    batch = demonstrations(6)
    batch["mask"][:, 3:] = 0
    loss = policy.loss(batch, seeded(1))
    batch["actions"] = batch["actions"].clone()
    batch["actions"][:, 3:] = torch.nan
    assert policy.loss(batch, seeded(1)) == loss


def test_style_loss_is_the_kl_divergence_from_the_prior() -> None:
    """A posterior N(1, I) over 4 dimensions is 4 x 1/2 nats away from N(0, I)."""
    policy = make(replace(SMALL, kl_weight=3.0))
    with torch.no_grad():
        policy.posterior.head.weight.zero_()
        policy.posterior.head.bias[:4] = 1.0
        policy.posterior.head.bias[4:] = 0.0
        policy.decoder.head.weight.zero_()
        policy.decoder.head.bias.zero_()
    batch = {**demonstrations(6), "actions": torch.zeros(6, 4, 2)}
    assert policy.loss(batch, seeded(1)).item() == pytest.approx(6.0)


def test_every_weight_gets_a_gradient() -> None:
    policy = make()
    policy.loss(demonstrations(6), seeded(1)).backward()
    without = [name for name, p in policy.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"heads": 5}, "multiple of heads, 5"),
        ({"execute": 5}, "must not exceed horizon, 4"),
        ({"layers": 0}, "layers"),
    ],
)
def test_invalid_configurations_are_refused(change: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make(replace(SMALL, **change))  # type: ignore[arg-type]
