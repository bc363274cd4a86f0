import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from robot_rl.hardware.core import rotation

numbers = st.floats(-1, 1)
vectors = st.tuples(numbers, numbers, numbers).filter(lambda r: math.hypot(*r) > 1e-3)
lengths = st.one_of(st.floats(0, math.pi - 1e-3), st.sampled_from((0.0, 1e-12, 1e-8, 1e-5)))


def scaled(r: tuple[float, float, float], length: float) -> tuple[float, float, float]:
    factor = length / math.hypot(*r)
    return r[0] * factor, r[1] * factor, r[2] * factor


@given(vectors, lengths, vectors, lengths)
def test_quaternions_are_those_of_scipy(
    a: tuple[float, float, float], la: float, b: tuple[float, float, float], lb: float
) -> None:
    ra, rb = scaled(a, la), scaled(b, lb)
    qa, qb = rotation.exponential(ra), rotation.exponential(rb)
    assert np.allclose(qa, Rotation.from_rotvec(ra).as_quat(), atol=1e-12)
    assert np.allclose(rotation.logarithm(qa), ra, atol=1e-9)
    both = Rotation.from_rotvec(ra) * Rotation.from_rotvec(rb)
    assert np.allclose(Rotation.from_quat(rotation.product(qa, qb)).as_matrix(), both.as_matrix(), atol=1e-9)
    turned = Rotation.from_rotvec(rotation.between(qa, qb)) * Rotation.from_rotvec(ra)
    assert np.allclose(turned.as_matrix(), Rotation.from_rotvec(rb).as_matrix(), atol=1e-9)


@given(vectors, lengths, vectors)
def test_the_rate_is_the_angular_velocity_and_never_above_that_of_the_vector(
    a: tuple[float, float, float], length: float, dr: tuple[float, float, float]
) -> None:
    r, h = np.array(scaled(a, length)), 1e-6
    before, after = (Rotation.from_rotvec(r + sign * h * np.array(dr)) for sign in (-1, 1))
    expected = (after * before.inv()).as_rotvec() / (2 * h)
    found = rotation.rate(r.tolist(), dr)
    assert np.allclose(found, expected, atol=1e-4)
    assert np.linalg.norm(found) <= np.linalg.norm(dr) * (1 + 1e-9)


def test_the_other_way_round_is_taken_where_it_is_nearer() -> None:
    r = (0.0, 0.0, 3.5)
    assert rotation.logarithm_near(rotation.exponential(r), (0.0, 0.0, 3.4)) == pytest.approx(r)
    assert rotation.logarithm_near(rotation.exponential(r), (0.0, 0.0, -2.0)) == pytest.approx(
        (0, 0, 3.5 - 2 * math.pi)
    )
