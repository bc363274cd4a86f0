"""The batched ensemble is an ensemble of separate LayerNorm networks."""

import torch
from torch import Tensor, nn

from robot_rl.learning.critic import EnsembleCritic, polyak

MEMBERS, STATE, ACTION, HIDDEN = 4, 5, 2, (8, 6)


def make() -> EnsembleCritic:
    torch.manual_seed(0)
    critic = EnsembleCritic(MEMBERS, STATE, ACTION, HIDDEN)
    for parameter in critic.parameters():  # gains and biases differ between members too
        nn.init.normal_(parameter)
    critic.norm.mean.copy_(torch.randn(STATE))
    critic.norm.std.copy_(torch.rand(STATE) + 0.5)
    return critic


def member(critic: EnsembleCritic, index: int) -> nn.Sequential:
    """One critic as an ordinary network."""
    layers: list[nn.Module] = []
    for batched, norm in zip(critic.layers, critic.norms, strict=True):
        linear = nn.Linear(*batched.weight.shape[1:])
        linear.weight.data, linear.bias.data = batched.weight[index].T, batched.bias[index, 0]
        plain = nn.LayerNorm(norm.weight.shape[-1])
        plain.weight.data, plain.bias.data = norm.weight[index, 0], norm.bias[index, 0]
        layers += [linear, plain, nn.ReLU()]
    head = nn.Linear(HIDDEN[-1], 1)
    head.weight.data, head.bias.data = critic.head.weight[index].T, critic.head.bias[index, 0]
    return nn.Sequential(*layers, head)


def batch(size: int = 7) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(size, STATE), torch.rand(size, ACTION) * 2 - 1


def test_ensemble_equals_separate_networks() -> None:
    critic = make()
    state, action = batch()
    values = critic(state, action)
    assert values.shape == (MEMBERS, 7)
    x = torch.cat([(state - critic.norm.mean) / critic.norm.std, action], -1)
    for index in range(MEMBERS):
        torch.testing.assert_close(values[index], member(critic, index)(x)[:, 0])


def test_gradient_of_one_member_leaves_the_others_alone() -> None:
    critic = make()
    critic(*batch())[2].sum().backward()
    for parameter in critic.parameters():
        touched = parameter.grad.flatten(1).abs().sum(1) > 0
        assert touched.tolist() == [False, False, True, False]


def test_chosen_members_are_those_of_the_whole() -> None:
    critic = make()
    chosen = torch.tensor([3, 1])
    torch.testing.assert_close(critic(*batch(), chosen), critic(*batch())[chosen])


def test_subset_minimum_is_over_that_many_random_members() -> None:
    critic = make()
    with torch.no_grad():
        # No member is the lowest everywhere.
        critic.head.bias.sub_(critic(*batch(200)).mean(1)[:, None, None])
    values = critic(*batch(200))
    generator = torch.Generator().manual_seed(0)
    seen = set()
    for _ in range(60):
        low = critic.subset_min(*batch(200), 2, generator)
        pairs = [
            (i, j)
            for i in range(MEMBERS)
            for j in range(i)
            if torch.allclose(low, torch.minimum(values[i], values[j]))
        ]
        assert len(pairs) == 1
        seen |= set(pairs)
    assert len(seen) == 6  # every pair of 4 comes
    torch.testing.assert_close(critic.subset_min(*batch(200), MEMBERS), values.amin(0))


def test_generator_fixes_the_subset() -> None:
    critic = make()
    draws = [critic.subset_min(*batch(), 1, torch.Generator().manual_seed(5)) for _ in range(2)]
    assert torch.equal(*draws)


def test_polyak_moves_the_target_by_tau() -> None:
    target, online = make(), make()
    with torch.no_grad():
        for parameter in online.parameters():
            parameter.add_(1.0)
    before = [parameter.clone() for parameter in target.parameters()]
    after_online = [parameter.clone() for parameter in online.parameters()]
    polyak(target, online, 0.25)
    for was, now in zip(before, target.parameters(), strict=True):
        torch.testing.assert_close(now, was + 0.25)
    for was, now in zip(after_online, online.parameters(), strict=True):
        assert torch.equal(was, now)


def test_state_far_outside_of_the_data_is_clamped() -> None:
    critic = make()
    _, action = batch()
    far = torch.full((7, STATE), 1e6)
    torch.testing.assert_close(critic(far, action), critic(10 * far, action))
