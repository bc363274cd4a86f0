"""Exponential moving average of weights: formula, buffers, exact resumption."""

import torch
from torch import nn

from robot_rl.policies.nets.ema import EMA


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("scale", torch.ones(2))


def step(module: Toy, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.randn(p.shape, generator=generator))


def test_average_equals_the_formula() -> None:
    module = Toy()
    ema = EMA(module)
    expected = module.layer.weight.detach().clone()
    for n in range(6):
        step(module, n)
        decay = 1 - (1 + n) ** -0.75
        expected = decay * expected + (1 - decay) * module.layer.weight.detach()
        assert ema.decay == decay
        ema.update(module)
        torch.testing.assert_close(ema.average.layer.weight, expected)
    ema.updates = 10**6
    assert ema.decay == 0.9999


def test_first_update_replaces_the_random_initialisation() -> None:
    module = Toy()
    ema = EMA(module)
    step(module, 0)
    ema.update(module)
    assert torch.equal(ema.average.layer.weight, module.layer.weight)


def test_average_is_a_frozen_copy() -> None:
    module = Toy()
    ema = EMA(module)
    before = ema.average.layer.weight.clone()
    step(module, 0)
    assert torch.equal(ema.average.layer.weight, before)
    assert not any(p.requires_grad for p in ema.average.parameters())


def test_buffers_are_copied_not_averaged() -> None:
    module = Toy()
    ema = EMA(module)
    module.get_buffer("scale").fill_(5.0)
    ema.update(module)
    assert ema.average.get_buffer("scale").tolist() == [5.0, 5.0]


def test_resumed_average_equals_an_uninterrupted_one() -> None:
    module = Toy()
    straight = EMA(module)
    for n in range(5):
        step(module, n)
        straight.update(module)
    saved = {name: tensor.clone() for name, tensor in straight.state_dict().items()}
    resumed = EMA(Toy())
    resumed.load_state_dict(saved)
    for n in range(5, 10):
        step(module, n)
        straight.update(module)
        resumed.update(module)
    assert resumed.updates == straight.updates == 10
    for mine, theirs in zip(resumed.state_dict().values(), straight.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)
