"""Normaliser: range, inverse, constant dimensions, refused data."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from robot_rl.policies.nets.normalizer import Normalizer

arrays = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=12),
    elements=st.floats(-1e3, 1e3, width=32),
)


@settings(max_examples=60)
@given(arrays, st.sampled_from([1e-2, 0.1, 2.0]))
def test_normalising_is_invertible_and_stays_in_range(data: np.ndarray, min_range: float) -> None:
    normalizer = Normalizer.fit(data, min_range=min_range)
    x = torch.from_numpy(data)
    normalized = normalizer.normalize(x)
    assert normalized.abs().max() <= 1 + 1e-2  # float32 keeps 1e-4 of 1e3, and the range may be 1e-2
    torch.testing.assert_close(normalizer.unnormalize(normalized), x, rtol=1e-5, atol=1e-3)


def test_ends_of_the_range_map_to_minus_one_and_one() -> None:
    normalizer = Normalizer.fit([[0.0, 10.0], [4.0, 30.0]], min_range=1e-2)
    torch.testing.assert_close(normalizer.normalize(torch.tensor([[0.0, 30.0]])), torch.tensor([[-1.0, 1.0]]))


def test_constant_dimension_maps_to_zero() -> None:
    normalizer = Normalizer.fit(np.full((5, 2), 3.0), min_range=1e-2)
    assert torch.equal(normalizer.normalize(torch.full((1, 2), 3.0)), torch.zeros(1, 2))


def test_almost_constant_dimension_is_not_amplified() -> None:
    normalizer = Normalizer.fit([[0.0], [1e-6]], min_range=0.1)
    assert normalizer.normalize(torch.tensor([[1e-6]])).abs().max() < 1e-4


def test_bound_clamps_only_values_far_outside_the_data() -> None:
    normalizer = Normalizer.fit([[-2.0], [2.0]], min_range=1e-2)
    got = normalizer.normalize(torch.tensor([[-100.0], [2.5], [100.0]]), bound=1.5)
    assert got.flatten().tolist() == [-1.5, 1.25, 1.5]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_data_is_refused_and_names_the_dimension(value: float) -> None:
    with pytest.raises(ValueError, match="dimension 1"):
        Normalizer.fit([[0.0, value], [1.0, 2.0]], min_range=1e-2)


@pytest.mark.parametrize("data", [np.zeros((0, 3)), np.zeros(3), np.zeros((2, 3, 4))])
def test_data_of_another_shape_is_refused(data: np.ndarray) -> None:
    with pytest.raises(ValueError, match="shape"):
        Normalizer.fit(data, min_range=1e-2)


def test_min_range_must_be_positive() -> None:
    with pytest.raises(ValueError, match="min_range"):
        Normalizer.fit(np.zeros((2, 1)), min_range=0.0)


def test_statistics_are_part_of_the_state_dict() -> None:
    fitted = Normalizer.fit([[0.0], [4.0]], min_range=1e-2)
    fresh = Normalizer(1)
    fresh.load_state_dict(fitted.state_dict())
    assert fresh.normalize(torch.tensor([[4.0]])).item() == 1.0
