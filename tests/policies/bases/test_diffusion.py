"""Diffusion policy: learning, sampling from noise, DDIM, loss and padding, refused inputs."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from diffusers.schedulers.scheduling_ddim import DDIMScheduler
from diffusers.schedulers.scheduling_ddpm import DDPMScheduler
from torch import Tensor, nn

from robot_rl.policies.bases.base_policy import is_steered_by_noise
from robot_rl.policies.bases.diffusion import DiffusionConfig, DiffusionPolicy, ddim_coefficients
from robot_rl.policies.nets.denoisers import Denoiser, UNet1D

SMALL = DiffusionConfig(horizon=4, execute=2, obs_steps=2, width=32, depth=1, unet_dims=[8, 16, 32])
STATE, ACTION = 3, 2


def make(config: DiffusionConfig = SMALL) -> DiffusionPolicy:
    torch.manual_seed(0)
    return DiffusionPolicy(config, STATE, ACTION)


def observation(batch: int) -> dict[str, Tensor]:
    return {"state": torch.randn(batch, SMALL.obs_steps, STATE, generator=seeded(7))}


def demonstrations(batch: int) -> dict[str, Tensor]:
    actions = torch.rand(batch, SMALL.horizon, ACTION, generator=seeded(8)) * 2 - 1
    return {**observation(batch), "actions": actions, "mask": torch.ones(batch, SMALL.horizon)}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


both = pytest.mark.parametrize("denoiser", ["mlp", pytest.param("unet", marks=pytest.mark.full)])


@both
def test_policy_learns_both_modes_of_the_demonstrations(denoiser: str) -> None:
    """In the same state half the demonstrations go left and half go right; the mean is never seen."""
    config = DiffusionConfig(horizon=4, execute=2, denoiser=denoiser, width=64, depth=2, unet_dims=[16, 32])
    torch.manual_seed(0)
    policy = DiffusionPolicy(config, 1, 1)
    policy.fit_normalizers(torch.tensor([[-1.0], [1.0]]), torch.tensor([[-0.8], [0.8]]))
    optimizer = torch.optim.Adam(policy.parameters(), 3e-3)
    generator = seeded(0)
    for _ in range(300):
        side = torch.randint(0, 2, (64, 1, 1), generator=generator) * 2.0 - 1.0
        batch = {
            "state": torch.zeros(64, 1, 1),
            "actions": (0.8 * side).expand(-1, 4, -1),
            "mask": torch.ones(64, 4),
        }
        optimizer.zero_grad()
        policy.loss(batch, generator).backward()
        optimizer.step()

    obs = {"state": torch.zeros(1, 1, 1)}
    actions = policy.sample(obs, num_samples=200, generator=generator).actions.view(200, 4)
    left = ((actions + 0.8).abs() < 0.2).all(dim=1).float().mean()
    right = ((actions - 0.8).abs() < 0.2).all(dim=1).float().mean()
    assert left + right > 0.9
    assert 0.3 < right < 0.7


@both
def test_sample_is_determined_by_the_noise(denoiser: str) -> None:
    policy = make(replace(SMALL, denoiser=denoiser))
    noise = policy.draw_noise(3, 2, seeded(1))
    first = policy.sample(observation(3), noise=noise, num_samples=2)
    second = policy.sample(observation(3), noise=noise, num_samples=2, generator=seeded(99))
    assert torch.equal(first.actions, second.actions)
    assert first.noise is not None
    assert torch.equal(first.noise, noise)


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
    noise = policy.draw_noise(3, 4, seeded(1))
    together = policy.sample(observation(3), noise=noise, num_samples=4).actions
    for i in range(4):
        alone = policy.sample(observation(3), noise=noise[:, i : i + 1]).actions
        torch.testing.assert_close(together[:, i : i + 1], alone, rtol=0, atol=1e-5)


def test_output_shapes() -> None:
    chunk = make().sample(observation(5), num_samples=3)
    assert chunk.actions.shape == (5, 3, 4, 2)
    assert chunk.actions.dtype == torch.float32
    assert chunk.noise is not None
    assert chunk.noise.shape == (5, 3, 4, 2)


def test_actions_stay_in_range_for_extreme_noise_and_states() -> None:
    policy = make()
    policy.fit_normalizers(torch.randn(50, STATE), torch.rand(50, ACTION) * 2 - 1)
    obs = {"state": torch.full((2, SMALL.obs_steps, STATE), 1e6)}
    actions = policy.sample(obs, noise=torch.full((2, 1, 4, 2), 50.0)).actions
    assert actions.isfinite().all()
    assert actions.abs().max() <= 1.0


@pytest.mark.parametrize("shape", [(3, 1, 4, 3), (3, 1, 5, 2), (2, 1, 4, 2), (3, 2, 4, 2), (3, 4, 2)])
def test_noise_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"noise has shape .* needs \(3, 1, 4, 2\)"):
        make().sample(observation(3), noise=torch.zeros(shape))


@pytest.mark.parametrize("shape", [(3, 1, 3), (3, 2, 4), (2, 3)])
def test_observation_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="trained on"):
        make().sample({"state": torch.zeros(shape)})


def test_sampling_computes_no_gradient() -> None:
    assert not make().sample(observation(2)).actions.requires_grad


@both
def test_sampling_with_gradient_equals_sampling(denoiser: str) -> None:
    policy = make(replace(SMALL, denoiser=denoiser))
    noise = policy.draw_noise(3, 2, seeded(1)).requires_grad_()
    made = policy.sample_with_gradient(policy.features(observation(3)), noise)
    torch.testing.assert_close(made, policy.sample(observation(3), noise=noise, num_samples=2).actions)
    (gradient,) = torch.autograd.grad(made.square().sum(), noise)
    assert (gradient.flatten(1).norm(dim=1) > 0).all()


@both
def test_loss_is_the_same_for_the_same_seed(denoiser: str) -> None:
    policy = make(replace(SMALL, denoiser=denoiser))
    losses = [policy.loss(demonstrations(6), seeded(seed)).item() for seed in (1, 1, 2)]
    assert losses[0] == losses[1] != losses[2]


@both
def test_padding_does_not_affect_the_loss(denoiser: str) -> None:
    policy = make(replace(SMALL, denoiser=denoiser))
    batch = demonstrations(6)
    batch["mask"][:, 3:] = 0
    loss = policy.loss(batch, seeded(1))
    batch["actions"] = batch["actions"].clone()
    batch["actions"][:, 3:] = torch.nan
    assert policy.loss(batch, seeded(1)) == loss


def test_loss_is_a_mean_over_unpadded_actions() -> None:
    """An error of 1 at every unpadded action is a loss of 1, for any amount of padding."""
    policy = make()
    policy.denoiser = Constant(1.0)
    batch = demonstrations(6)
    batch["actions"] = torch.zeros_like(batch["actions"])
    batch["mask"][:, 1:] = 0
    assert policy.loss(batch, seeded(1)).item() == pytest.approx(1.0)


def test_loss_of_a_batch_of_padding_is_zero() -> None:
    batch = demonstrations(2)
    assert make().loss({**batch, "mask": torch.zeros_like(batch["mask"])}, seeded(1)).item() == 0.0


@both
def test_every_weight_gets_a_gradient(denoiser: str) -> None:
    policy = make(replace(SMALL, denoiser=denoiser))
    policy.loss(demonstrations(6), seeded(1)).backward()
    without = [name for name, p in policy.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


@pytest.mark.parametrize(("train_steps", "inference_steps"), [(64, 8), (100, 10), (20, 1), (16, 16)])
def test_ddim_equals_diffusers(train_steps: int, inference_steps: int) -> None:
    scheduler = DDIMScheduler(
        num_train_timesteps=train_steps,
        beta_schedule="squaredcos_cap_v2",
        prediction_type="sample",
        clip_sample=True,
        timestep_spacing="trailing",
    )
    scheduler.set_timesteps(inference_steps)
    coefficients = ddim_coefficients(scheduler.alphas_cumprod[scheduler.timesteps])
    generator = seeded(3)
    mine = theirs = torch.randn(4, 8, 2, dtype=torch.float64, generator=generator)
    for k, (c_x, c_0) in zip(scheduler.timesteps, coefficients, strict=True):
        predicted = torch.randn(mine.shape, dtype=torch.float64, generator=generator)
        mine = c_x * mine + c_0 * predicted.clamp(-1, 1)
        theirs = scheduler.step(predicted, k, theirs, use_clipped_model_output=True).prev_sample
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("train_steps", "inference_steps"), [(64, 8), (100, 10), (7, 6), (20, 1), (16, 16)])
def test_the_schedule_is_that_of_diffusers(train_steps: int, inference_steps: int) -> None:
    """Bit by bit: policies that were trained with diffusers' own act as they did."""
    ddpm = DDPMScheduler(train_steps, beta_schedule="squaredcos_cap_v2")
    ddim = DDIMScheduler(train_steps, beta_schedule="squaredcos_cap_v2", timestep_spacing="trailing")
    ddim.set_timesteps(inference_steps)
    policy = make(replace(SMALL, train_steps=train_steps, inference_steps=inference_steps))
    assert torch.equal(policy.timesteps, ddim.timesteps)
    clean, noise = torch.randn(2, 5, 4, 2, generator=seeded(1))
    times = torch.randint(train_steps, (5,), generator=seeded(2))
    mixed, target = policy._interpolate(clean, noise, times)
    assert torch.equal(mixed, ddpm.add_noise(clean, noise, times))
    assert torch.equal(target, clean)


def test_policy_samples_like_diffusers() -> None:
    policy = make()
    obs, noise = observation(3), policy.draw_noise(3, generator=seeded(1))
    scheduler = DDIMScheduler(
        num_train_timesteps=SMALL.train_steps,
        beta_schedule="squaredcos_cap_v2",
        prediction_type="sample",
        timestep_spacing="trailing",
    )
    scheduler.set_timesteps(SMALL.inference_steps)
    x = noise[:, 0]
    with torch.no_grad():
        state = policy.state_normalizer.normalize(obs["state"], bound=1.5).flatten(1)
        for k in scheduler.timesteps:
            predicted = policy.denoiser(x, policy.denoiser.condition(state, k.expand(3)))
            x = scheduler.step(predicted, k, x, use_clipped_model_output=True).prev_sample
    torch.testing.assert_close(policy.sample(obs, noise=noise).actions[:, 0], x, rtol=0, atol=1e-5)


@pytest.mark.parametrize("horizon", [4, 8, 12, 20, 64])
def test_unet_accepts_horizons_that_are_multiples_of_four(horizon: int) -> None:
    unet = UNet1D(horizon, ACTION, 5, dims=(8, 16, 32))
    x = torch.zeros(2, horizon, ACTION)
    assert unet(x, unet.condition(torch.zeros(2, 5), torch.tensor([0, 9]))).shape == x.shape


@pytest.mark.parametrize("horizon", [1, 2, 6, 15])
def test_unet_refuses_other_horizons(horizon: int) -> None:
    with pytest.raises(ValueError, match="multiple of 4"):
        UNet1D(horizon, ACTION, 5)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"denoiser": "transformer"}, "mlp or unet"),
        ({"execute": 5}, "must not exceed horizon, 4"),
        ({"inference_steps": 65}, "train_steps"),
        ({"horizon": 0}, "horizon"),
        ({"denoiser": "unet", "unet_dims": [12]}, "multiple of 8"),
    ],
)
def test_invalid_configurations_are_refused(change: dict[str, object], says: str) -> None:
    config = replace(SMALL, **change)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=says):
        make(config)


def test_normalisers_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="states have 4 dimensions, the policy 3"):
        make().fit_normalizers(torch.zeros(5, 4), torch.zeros(5, ACTION))


class Ignoring(DiffusionPolicy):
    """Base policy whose actions are `pick` of the noise."""

    def __init__(self, pick: Callable[[Tensor], Tensor]) -> None:
        super().__init__(SMALL, STATE, ACTION)
        self.pick = pick

    def sample(self, obs, *, noise=None, num_samples=1, generator=None):  # type: ignore[no-untyped-def]
        assert noise is not None
        return super().sample(obs, noise=self.pick(noise), num_samples=num_samples)


def test_probe_detects_ignored_noise() -> None:
    assert not is_steered_by_noise(Ignoring(torch.zeros_like), observation(3))


def test_probe_detects_internal_noise() -> None:
    assert not is_steered_by_noise(Ignoring(torch.randn_like), observation(3))


class Constant(Denoiser):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value))

    def condition(self, obs: Tensor, timesteps: Tensor) -> Tensor:
        return obs

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        return self.value.expand_as(x)
