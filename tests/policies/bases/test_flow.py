"""Flow-matching policy: learning, sampling from noise, Euler integration, loss and padding."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from robot_rl.policies.bases.base_policy import is_steered_by_noise
from robot_rl.policies.bases.flow import FlowConfig, FlowPolicy
from robot_rl.policies.nets.denoisers import Denoiser

SMALL = FlowConfig(horizon=4, execute=2, obs_steps=2, width=32, depth=1, unet_dims=[8, 16, 32])
STATE, ACTION = 3, 2

both = pytest.mark.parametrize("denoiser", ["mlp", pytest.param("unet", marks=pytest.mark.full)])


def make(config: FlowConfig = SMALL) -> FlowPolicy:
    torch.manual_seed(0)
    return FlowPolicy(config, STATE, ACTION)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def observation(batch: int) -> dict[str, Tensor]:
    return {"state": torch.randn(batch, SMALL.obs_steps, STATE, generator=seeded(7))}


def demonstrations(batch: int) -> dict[str, Tensor]:
    actions = torch.rand(batch, SMALL.horizon, ACTION, generator=seeded(8)) * 2 - 1
    return {**observation(batch), "actions": actions, "mask": torch.ones(batch, SMALL.horizon)}


def train(config: FlowConfig, batches: list[dict[str, Tensor]], low: float, high: float) -> FlowPolicy:
    torch.manual_seed(0)
    policy = FlowPolicy(config, 1, 1)
    policy.fit_normalizers(torch.tensor([[-1.0], [1.0]]), torch.tensor([[low], [high]]))
    optimizer = torch.optim.Adam(policy.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, len(batches))
    generator = seeded(0)
    for batch in batches:
        optimizer.zero_grad()
        policy.loss(batch, generator).backward()
        optimizer.step()
        schedule.step()
    return policy


@both
def test_policy_learns_both_modes_of_the_demonstrations(denoiser: str) -> None:
    """In the same state three demonstrations in four go right, the others left; the mean is never seen."""

    generator = seeded(1)
    sides = torch.where(torch.rand(300, 64, 1, 1, generator=generator) < 0.75, 0.8, -0.8).expand(
        -1, -1, 4, -1
    )
    state, mask = torch.zeros(64, 1, 1), torch.ones(64, 4)
    batches = [{"state": state, "actions": actions, "mask": mask} for actions in sides]
    config = FlowConfig(horizon=4, execute=2, denoiser=denoiser, width=64, depth=2, unet_dims=[16, 32])
    policy = train(config, batches, -0.8, 0.8)
    obs = {"state": torch.zeros(1, 1, 1)}
    actions = policy.sample(obs, num_samples=400, generator=seeded(2)).actions.view(400, 4)
    left = ((actions + 0.8).abs() < 0.25).all(dim=1).float().mean()
    right = ((actions - 0.8).abs() < 0.25).all(dim=1).float().mean()
    assert left + right > 0.9
    assert 0.6 < right < 0.9


def test_policy_learns_the_spread_of_the_demonstrations() -> None:
    """Actions around a mean given by the state, with a standard deviation of 0.2."""

    generator = seeded(1)
    states = torch.rand(500, 128, 1, 1, generator=generator) * 2 - 1
    spread = 0.2 * torch.randn(500, 128, 1, 1, generator=generator)
    mask = torch.ones(128, 1)
    batches = [
        {"state": state, "actions": 0.4 * state + spread, "mask": mask}
        for state, spread in zip(states, spread, strict=True)
    ]
    # Few Euler steps make the spread smaller than it is: by a sixth with 10.
    config = FlowConfig(horizon=1, execute=1, width=64, depth=2, inference_steps=50)
    policy = train(config, batches, -1.0, 1.0)
    obs = {"state": torch.tensor([[[-0.8]], [[0.8]]])}
    actions = policy.sample(obs, num_samples=1000, generator=seeded(2)).actions.view(2, 1000)
    torch.testing.assert_close(actions.mean(dim=1), torch.tensor([-0.32, 0.32]), rtol=0, atol=0.04)
    torch.testing.assert_close(actions.std(dim=1), torch.tensor([0.2, 0.2]), rtol=0, atol=0.04)


@both
def test_sample_is_determined_by_the_noise(denoiser: str) -> None:
    policy = make(replace(SMALL, denoiser=denoiser))
    noise = policy.draw_noise(3, 2, seeded(1))
    first = policy.sample(observation(3), noise=noise, num_samples=2)
    second = policy.sample(observation(3), noise=noise, num_samples=2, generator=seeded(99))
    assert torch.equal(first.actions, second.actions)
    assert first.noise is not None
    assert torch.equal(first.noise, noise)
    assert first.actions.shape == noise.shape == (3, 2, 4, 2)
    assert not first.actions.requires_grad


def test_same_seed_gives_the_same_sample_and_noise() -> None:
    policy = make()
    first = policy.sample(observation(3), generator=seeded(1))
    assert torch.equal(first.actions, policy.sample(observation(3), generator=seeded(1)).actions)
    assert torch.equal(first.actions, policy.sample(observation(3), noise=first.noise).actions)


@both
def test_probe_detects_that_noise_steers_the_policy(denoiser: str) -> None:
    assert is_steered_by_noise(make(replace(SMALL, denoiser=denoiser)), observation(3))


@both
def test_several_samples_in_one_call_equal_separate_calls(denoiser: str) -> None:
    policy = make(replace(SMALL, denoiser=denoiser))
    obs, noise = observation(3), policy.draw_noise(3, 4, seeded(1))
    together = policy.sample(obs, noise=noise, num_samples=4).actions
    for b in range(3):
        for i in range(4):
            one = {"state": obs["state"][b : b + 1]}
            alone = policy.sample(one, noise=noise[b : b + 1, i : i + 1]).actions
            torch.testing.assert_close(together[b : b + 1, i : i + 1], alone, rtol=0, atol=1e-5)


def test_actions_stay_in_range_for_extreme_noise_and_states() -> None:
    policy = make()
    policy.fit_normalizers(torch.randn(50, STATE), torch.rand(50, ACTION) * 2 - 1)
    obs = {"state": torch.full((2, SMALL.obs_steps, STATE), 1e6)}
    actions = policy.sample(obs, noise=torch.full((2, 1, 4, 2), 50.0)).actions
    assert actions.isfinite().all()
    assert actions.abs().max() <= 1.0


@pytest.mark.parametrize("steps", [1, 4, 10])
def test_euler_integrates_a_constant_velocity_exactly(steps: int) -> None:
    policy = make(replace(SMALL, inference_steps=steps))
    policy.denoiser = Known(lambda x, t: torch.full_like(x, 0.25))
    noise = torch.rand(3, 1, 4, 2, generator=seeded(1)) - 0.5
    torch.testing.assert_close(policy.sample(observation(3), noise=noise).actions, noise + 0.25)


def test_euler_integrates_the_true_flow_to_the_data() -> None:
    """For data x_1 = c, v(x, t) = (c - x) / (1 - t) moves every noise to c, in any number of steps."""
    for steps in (1, 10):
        policy = make(replace(SMALL, inference_steps=steps))
        policy.denoiser = Known(lambda x, t: (0.3 - x) / (1 - t.view(-1, 1, 1)))
        actions = policy.sample(observation(3), generator=seeded(1)).actions
        torch.testing.assert_close(actions, torch.full_like(actions, 0.3))


def test_loss_of_the_true_velocity_is_zero() -> None:
    """With a known chunk, x_t and t determine the noise and so the velocity."""
    policy = make()
    chunk = 0.3
    policy.denoiser = Known(lambda x, t: (chunk - x) / (1 - t.view(-1, 1, 1)))
    batch = {**demonstrations(6), "actions": torch.full((6, 4, 2), chunk)}
    assert policy.loss(batch, seeded(1)).item() == pytest.approx(0.0, abs=1e-6)


@both
def test_loss_is_the_same_for_the_same_seed(denoiser: str) -> None:
    policy = make(replace(SMALL, denoiser=denoiser))
    losses = [policy.loss(demonstrations(6), seeded(seed)).item() for seed in (1, 1, 2)]
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("max_prefix", [0, 2])
def test_several_draws_of_a_window_give_the_mean_of_their_losses(max_prefix: int) -> None:
    one, several = (make(replace(SMALL, max_prefix=max_prefix, draws=draws)) for draws in (1, 3))
    batch = demonstrations(6)
    batch["mask"][0, 2:] = 0
    drawn = several.draw(6, seeded(1))
    whole = several.loss(batch, seeded(1))
    totals = one.totals({**batch, **drawn})
    each = []
    for draw in range(3):
        single = {name: drawn[name][:, draw : draw + 1] for name in ("times", "noise")}
        each.append(one.partial_loss({**batch, **drawn, **single}, totals))
    torch.testing.assert_close(whole, torch.stack(each).mean())


@both
def test_padding_does_not_affect_the_loss(denoiser: str) -> None:
    policy = make(replace(SMALL, denoiser=denoiser))
    batch = demonstrations(6)
    batch["mask"][:, 3:] = 0
    loss = policy.loss(batch, seeded(1))
    batch["actions"] = batch["actions"].clone()
    batch["actions"][:, 3:] = torch.nan
    assert policy.loss(batch, seeded(1)) == loss


@both
def test_every_weight_gets_a_gradient(denoiser: str) -> None:
    policy = make(replace(SMALL, denoiser=denoiser))
    policy.loss(demonstrations(6), seeded(1)).backward()
    without = [name for name, p in policy.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


@pytest.mark.parametrize("shape", [(3, 1, 4, 3), (3, 1, 5, 2), (2, 1, 4, 2), (3, 2, 4, 2), (3, 4, 2)])
def test_noise_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"noise has shape .* needs \(3, 1, 4, 2\)"):
        make().sample(observation(3), noise=torch.zeros(shape))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"denoiser": "transformer"}, "mlp or unet"),
        ({"execute": 5}, "must not exceed horizon, 4"),
        ({"inference_steps": 0}, "inference_steps"),
        ({"depth": 0}, "depth"),
        ({"draws": 0}, "draws"),
    ],
)
def test_invalid_configurations_are_refused(change: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make(replace(SMALL, **change))  # type: ignore[arg-type]


class Known(Denoiser):
    """Denoiser with a known velocity as a function of x [B, H, A] and t [B] in [0, 1]."""

    def __init__(self, velocity: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.velocity = velocity
        self.unused = nn.Parameter(torch.zeros(1))

    def condition(self, obs: Tensor, timesteps: Tensor) -> Tensor:
        return (timesteps / 64 + 0 * obs[..., 0]).unsqueeze(-1)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        return self.velocity(x, condition[:, 0])
