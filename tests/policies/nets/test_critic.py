"""Critic ensemble: outputs and hand-written gradients equal those of separate networks."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from robot_rl.policies.nets.critic import EnsembleCritic, ValueCodec, ValueSpec
from robot_rl.policies.nets.encoder import EncoderSpec, ObservationEncoder

MEMBERS, FEATURES, ACTION, HIDDEN = 4, 5, 2, (8, 6)


def make(*, layer_norm: bool = True, num_critics: int = MEMBERS, outputs: int = 3) -> EnsembleCritic:
    torch.manual_seed(0)
    critic = EnsembleCritic(num_critics, FEATURES, ACTION, HIDDEN, outputs=outputs, layer_norm=layer_norm)
    for parameter in critic.parameters():  # gains and biases differ between members too
        nn.init.normal_(parameter)
    return critic


def member(critic: EnsembleCritic, index: int) -> nn.Sequential:
    """One critic as a torch.nn network with views of the ensemble's parameters."""
    layers: list[nn.Module] = []
    for i, batched in enumerate(critic.layers):
        linear = nn.Linear(*batched.weight.shape[1:])
        linear.weight.data, linear.bias.data = batched.weight[index].data.T, batched.bias[index, 0].data
        layers.append(linear)
        if len(critic.norms):
            norm, plain = critic.norms[i], nn.LayerNorm(linear.out_features)
            plain.weight.data, plain.bias.data = norm.weight[index, 0].data, norm.bias[index, 0].data
            layers.append(plain)
        layers.append(nn.ReLU())
    head = nn.Linear(HIDDEN[-1], critic.head.weight.shape[-1])
    head.weight.data, head.bias.data = critic.head.weight[index].data.T, critic.head.bias[index, 0].data
    return nn.Sequential(*layers, head)


def batch(size: int = 7) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    features, action = torch.randn(size, FEATURES), torch.rand(size, ACTION) * 2 - 1
    return features.requires_grad_(), action.requires_grad_()


def least(outputs: Tensor) -> Tensor:
    """A loss that depends only on the smallest critic of each row."""
    return (outputs.sum(-1).amin(0) * torch.arange(outputs.shape[1])).sum()


def everything(outputs: Tensor) -> Tensor:
    """A loss to which every output contributes differently."""
    return (outputs * torch.linspace(-1, 1, outputs.numel()).view_as(outputs)).sum()


norms = pytest.mark.parametrize("layer_norm", [False, True])
# A head with a single output is computed in another way.
sizes = pytest.mark.parametrize("outputs", [1, 3])


@norms
@sizes
def test_ensemble_equals_separate_networks(layer_norm: bool, outputs: int) -> None:
    critic = make(layer_norm=layer_norm, outputs=outputs)
    found = critic(*batch())
    assert found.shape == (MEMBERS, 7, outputs)
    with torch.no_grad():
        assert torch.equal(critic(*batch()), found)
    for index in range(MEMBERS):
        torch.testing.assert_close(found[index], member(critic, index)(torch.cat(batch(), -1)))


@norms
@sizes
def test_gradients_equal_those_of_separate_networks(layer_norm: bool, outputs: int) -> None:
    critic = make(layer_norm=layer_norm, outputs=outputs)
    inputs = batch()
    everything(critic(*inputs)).backward()
    plain = batch()
    networks = [member(critic, index) for index in range(MEMBERS)]
    everything(torch.stack([network(torch.cat(plain, -1)) for network in networks])).backward()
    for ours, theirs in zip(inputs, plain, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    for index, network in enumerate(networks):
        linears = [layer for layer in network if isinstance(layer, nn.Linear)]
        for layer, linear in zip([*critic.layers, critic.head], linears, strict=True):
            torch.testing.assert_close(layer.weight.grad[index], linear.weight.grad.T)
            torch.testing.assert_close(layer.bias.grad[index, 0], linear.bias.grad)
        plain_norms = [layer for layer in network if isinstance(layer, nn.LayerNorm)]
        for layer, norm in zip(critic.norms, plain_norms, strict=True):
            torch.testing.assert_close(layer.weight.grad[index, 0], norm.weight.grad)
            torch.testing.assert_close(layer.bias.grad[index, 0], norm.bias.grad)


@norms
@sizes
@pytest.mark.parametrize("of", [least, everything])
@pytest.mark.parametrize("num_critics", [1, MEMBERS])
def test_frozen_critics_give_the_same_input_gradient_and_no_weight_gradient(
    of: Callable[[Tensor], Tensor], layer_norm: bool, num_critics: int, outputs: int
) -> None:
    critic = make(layer_norm=layer_norm, num_critics=num_critics, outputs=outputs)
    through, frozen = batch(), batch()
    of(critic(*through)).backward()
    critic.zero_grad()
    of(critic(*frozen, frozen=True)).backward()
    for expected, found in zip(through, frozen, strict=True):
        torch.testing.assert_close(found.grad, expected.grad)
    assert all(parameter.grad is None for parameter in critic.parameters())


def test_loss_of_one_critic_gives_the_others_no_gradient() -> None:
    critic = make()
    critic(*batch())[2].sum().backward()
    for parameter in critic.parameters():
        touched = parameter.grad.flatten(1).abs().sum(1) > 0
        assert touched.tolist() == [False, False, True, False]


def test_subset_equals_those_critics_of_the_whole_ensemble() -> None:
    critic = make()
    chosen = torch.tensor([3, 1])
    torch.testing.assert_close(critic(*batch(), chosen), critic(*batch())[chosen])
    critic(*batch(), chosen).sum().backward()
    assert [bool(g.abs().sum() > 0) for g in critic.head.weight.grad] == [False, True, False, True]


def test_copied_and_loaded_critics_use_their_own_weights() -> None:
    critic, inputs = make(), batch()
    copied = copy.deepcopy(critic)
    with torch.no_grad():
        before = critic(*inputs)
        for parameter in copied.parameters():
            parameter.zero_()
        assert not copied(*inputs).any()
        assert torch.equal(critic(*inputs), before)
        copied.load_state_dict(critic.state_dict())
        assert torch.equal(copied(*inputs), before)
        assert copied.double()(*(x.double() for x in inputs)).dtype == torch.float64


def test_state_far_outside_the_data_is_clamped() -> None:
    encoder = ObservationEncoder(EncoderSpec(FEATURES))
    far = torch.full((7, FEATURES), 1e6)
    assert torch.equal(encoder({"state": far}), encoder({"state": 10 * far}))


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
