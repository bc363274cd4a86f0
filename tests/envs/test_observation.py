"""Raw observations are converted to the observation of a policy, or rejected."""

import json

import numpy as np
import pytest

from robot_rl.envs.observation import ObservationSpec, make_observation

SPEC = ObservationSpec(("pos", "angle"), (3, 1), ("front",), (4, 5))


def raw(*batch: int) -> dict[str, np.ndarray]:
    return {
        "angle": np.full((*batch, 1), 7.0),
        "pos": np.broadcast_to([1.0, 2.0, 3.0], (*batch, 3)).copy(),
        "images.front": np.zeros((*batch, 4, 5, 3), np.uint8),
        "unused": np.full(batch, np.nan),
    }


@pytest.mark.parametrize("batch", [(), (6,), (2, 3)])
def test_state_joins_the_keys_in_the_order_of_the_spec(batch: tuple[int, ...]) -> None:
    observation = make_observation(raw(*batch), SPEC)
    assert observation.keys() == {"state", "images.front"}
    assert observation["state"].dtype == np.float32
    np.testing.assert_array_equal(observation["state"], np.broadcast_to([1, 2, 3, 7], (*batch, 4)))
    assert observation["images.front"].shape == (*batch, 4, 5, 3)


def test_scalar_is_a_dimension_of_size_one() -> None:
    for angle, batch in ((np.float64(7), ()), (np.array([7.0]), ()), (np.arange(6.0), (6,))):
        state = make_observation({**raw(*batch), "angle": angle}, SPEC)["state"]
        np.testing.assert_array_equal(state[..., 3], np.reshape(angle, batch))


def test_dataset_and_step_give_the_same_numbers() -> None:
    rng = np.random.default_rng(0)
    steps = {**raw(9), "pos": rng.normal(size=(9, 3)), "angle": rng.normal(size=9)}
    together = make_observation(steps, SPEC)["state"]
    for t in range(9):
        alone = make_observation({key: value[t] for key, value in steps.items()}, SPEC)["state"]
        np.testing.assert_array_equal(alone, together[t])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_state_that_is_not_finite_is_refused_by_name(bad: float) -> None:
    with pytest.raises(ValueError, match=r"not finite: angle$"):
        make_observation({**raw(), "angle": np.array([bad])}, SPEC)


def test_other_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'pos' has size 2, the spec says 3"):
        make_observation({**raw(), "pos": np.zeros(2)}, SPEC)


def test_missing_key_is_not_made_up() -> None:
    with pytest.raises(KeyError, match="pos"):
        make_observation({"angle": np.zeros(1)}, SPEC)


@pytest.mark.parametrize("image", [np.zeros((4, 5, 3)), np.zeros((5, 4, 3), np.uint8)])
def test_image_of_other_type_or_size_is_refused(image: np.ndarray) -> None:
    with pytest.raises(ValueError, match="camera 'front'"):
        make_observation({**raw(), "images.front": image}, SPEC)


def test_spec_survives_json() -> None:
    assert ObservationSpec.from_dict(json.loads(json.dumps(SPEC.as_dict()))) == SPEC
    assert SPEC.state_size == 4
