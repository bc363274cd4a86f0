"""The ResNet of base=vla."""

import torch
from torch import nn
from torch.nn import functional as F

from robot_rl.policies.nets.film_resnet import FiLMResNet


def test_bfloat16_gives_the_output_and_gradients_of_torchs_group_norm() -> None:
    torch.manual_seed(0)
    net = FiLMResNet((32, 32), [8, 16], 4, 8)
    norm = net.stem[1]
    assert isinstance(norm, nn.GroupNorm)
    x = torch.randn(3, 8, 6, 6).to(torch.bfloat16).contiguous(memory_format=torch.channels_last)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    out = norm(mine)
    expected = F.group_norm(theirs, norm.num_groups, norm.weight, norm.bias)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, expected)
    out.float().square().sum().backward()
    expected.float().square().sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad)


def test_bfloat16_computes_the_same_within_its_precision() -> None:
    torch.manual_seed(0)
    net = FiLMResNet((32, 32), [8, 16], 4, 8)
    images, context = torch.randint(0, 256, (4, 32, 32, 3), dtype=torch.uint8), torch.randn(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        low = net(images, context)
    torch.testing.assert_close(low.float(), net(images, context), atol=0.1, rtol=0.1)
