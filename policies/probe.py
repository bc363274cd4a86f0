"""Checks whether a policy's noise input changes its actions; many policies accept noise and ignore it."""

import torch

from robot_rl.policies.bases.base_policy import BasePolicy, BaseSpec, ObservationHistory

TOLERANCE = 1e-5
"""Largest difference of two normalised actions that a GPU's order of summation may cause."""


def random_observations(spec: BaseSpec, batch: int, device: torch.device) -> ObservationHistory:
    """Random observations [B, To, …] of the shapes that a policy takes."""
    generator = torch.Generator().manual_seed(0)
    obs = {"state": torch.randn(batch, spec.obs_steps, spec.state_size, generator=generator)}
    for camera in spec.cameras:
        shape = (batch, spec.obs_steps, *(spec.image_size or ()), 3)
        obs[f"images.{camera}"] = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    return {name: value.to(device) for name, value in obs.items()}


def is_steered_by_noise(policy: BasePolicy, obs: ObservationHistory) -> bool:
    """Whether a policy's actions depend on its noise input, and on nothing else random.

    True if for every observation in `obs` other noise gives other actions and the same noise gives the same
    actions.
    """
    if policy.spec.noise_shape is None:
        return False
    batch = obs["state"].shape[0]
    generator = torch.Generator().manual_seed(0)
    first, other = (policy.draw_noise(batch, generator=generator) for _ in range(2))
    actions = policy.sample(obs, noise=first).actions
    again = policy.sample(obs, noise=first).actions
    changed = policy.sample(obs, noise=other).actions
    repeats = (again - actions).abs().amax() <= TOLERANCE
    steers = ((changed - actions).abs().flatten(1).amax(dim=1) > TOLERANCE).all()
    return bool(repeats & steers)
