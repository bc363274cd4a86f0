"""Value representations: scalars with mse or huber loss, and HL-Gauss bins."""

import pytest
import torch

from robot_rl.policies.nets.values import ValueCodec, ValueSpec

RANGES = [(0.0, 1.0), (-50.0, 0.0), (-2.0, 7.0)]


@pytest.mark.parametrize(("low", "high"), RANGES)
@pytest.mark.parametrize("bins", [21, 51, 101])
def test_hl_gauss_decoding_inverts_encoding(low: float, high: float, bins: int) -> None:
    codec = ValueCodec(ValueSpec("hl_gauss", low, high, bins))
    target = torch.linspace(low, high, 301)
    probabilities = codec.encode(target)
    assert probabilities.shape == (301, bins)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(301))
    decoded = codec.decode(probabilities.clamp(min=1e-30).log())
    assert (decoded - target).abs().max() <= 1e-3 * (high - low)


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_hl_gauss_clamps_targets_outside(low: float, high: float) -> None:
    codec = ValueCodec(ValueSpec("hl_gauss", low, high))
    outside = torch.tensor([low - 5, high + 5, low - 1e-3, high + 1e-3])
    assert torch.equal(codec.encode(outside), codec.encode(outside.clamp(low, high)))


def test_hl_gauss_learns_its_target() -> None:
    codec = ValueCodec(ValueSpec("hl_gauss", 0.0, 1.0))
    target = torch.tensor([0.0, 0.3, 1.0])
    logits = torch.zeros(2, 3, 51, requires_grad=True)
    optimizer = torch.optim.Adam([logits], 0.3)
    for _ in range(300):
        optimizer.zero_grad()
        codec.loss(logits, target).sum().backward()
        optimizer.step()
    torch.testing.assert_close(codec.decode(logits), target.expand(2, 3), atol=0.01, rtol=0)


@pytest.mark.parametrize(("loss", "expected"), [("mse", 9.0), ("huber", 2.5), ("hl_gauss", None)])
def test_losses_are_elementwise(loss: str, expected: float | None) -> None:
    spec = ValueSpec(loss, 0.0, 5.0)
    codec = ValueCodec(spec)
    outputs = torch.full((2, 4, spec.outputs), 3.0)
    found = codec.loss(outputs, torch.zeros(4))
    assert found.shape == codec.decode(outputs).shape == (2, 4)
    if expected is not None:
        torch.testing.assert_close(found, torch.full((2, 4), expected))


def test_unknown_loss_is_refused() -> None:
    with pytest.raises(ValueError, match="choose mse, huber or hl_gauss"):
        ValueCodec(ValueSpec("l3", 0.0, 1.0))
