"""The ensemble of states on data with known dynamics."""

import numpy as np
import pytest
import torch

from robot_rl.imagination.config import StateModelConfig
from robot_rl.imagination.episodes import Episode, Steps
from robot_rl.imagination.state_model import Shape, StateModel, sampling_weights
from robot_rl.imagination.world_model import ChunkStart

SMALL = StateModelConfig(hidden=[32], batch_size=64, members=3)
CPU = torch.device("cpu")


def linear_episodes(count: int, length: int = 20, seed: int = 0) -> list[Episode]:
    """s' = s + 0.1 a + 0.5 (s - s_before): linear, with a velocity that a single frame does not show."""
    rng = np.random.default_rng(seed)
    episodes = []
    for _ in range(count):
        actions = rng.uniform(-1, 1, (length, 2))
        states = [rng.uniform(-1, 1, 2)]
        for t, action in enumerate(actions):
            velocity = states[t] - states[t - 1] if t else np.zeros(2)
            states.append(states[t] + 0.1 * action + 0.5 * velocity)
        episodes.append(
            Episode(torch.tensor(np.array(states)).float(), torch.tensor(actions).float(), success=False)
        )
    return episodes


def model(seed: int = 0, **shape: tuple[int, ...]) -> StateModel:
    return StateModel(SMALL, Shape(2, 2, 4, **shape), seed)


def all_windows(episodes: list[Episode]) -> tuple[ChunkStart, torch.Tensor, torch.Tensor]:
    """Starts of chunks, their actions and the states that followed, of whole chunks."""
    steps = Steps(episodes)
    windows = steps.windows(steps.starts, 4)
    whole = windows.valid.all(1)
    return (
        ChunkStart(windows.frames[whole], windows.past[whole]),
        windows.actions[whole],
        windows.states[whole],
    )


def test_linear_dynamics_are_learned_to_a_thousandth() -> None:
    made = model()
    made.fit(linear_episodes(60), 0, 1500)
    start, chunk, states = all_windows(linear_episodes(5, seed=1))
    predicted = made.step(start, chunk, torch.arange(len(chunk)) % 3)
    error = (predicted.states - states) / made.scale
    assert float(error.square().mean().sqrt()) < 1e-3
    assert predicted.states.shape == (len(chunk), 4, 2)


def test_other_actions_lead_elsewhere_and_those_that_are_not_executed_count_for_nothing() -> None:
    made = model()
    made.fit(linear_episodes(10), 0, 100)
    start, chunk, _ = all_windows(linear_episodes(1, seed=2))
    member = torch.zeros(len(chunk), dtype=torch.long)
    there = made.step(start, chunk, member).states[:, -1]
    assert (there - made.step(start, -chunk, member).states[:, -1]).abs().amax(1).min() > 0.01
    other = chunk.clone()
    other[:, 2:] = -1
    two = torch.full((len(chunk),), 2)
    cut = [made.step(start, actions, member, two).states[:, :2] for actions in (chunk, other)]
    assert torch.equal(cut[0], cut[1])


def test_members_disagree_more_where_there_was_no_data() -> None:
    made = model()
    made.fit(linear_episodes(10), 0, 300)
    start, chunk, _ = all_windows(linear_episodes(2, seed=3))
    member = torch.zeros(len(chunk), dtype=torch.long)
    near = made.step(start, chunk, member).disagreement
    far = made.step(ChunkStart(start.frames + 30, start.past), chunk, member).disagreement
    assert (far.mean(1) > 3 * near.mean(1)).all()


def test_predicted_quaternions_have_length_one() -> None:
    made = StateModel(SMALL, Shape(5, 2, 4, quaternions=(1,)), 0)
    states = torch.nn.functional.normalize(torch.randn(3, 2, 5), dim=-1)
    predicted = made.step(
        ChunkStart(states, torch.zeros(3, 4, 2)), torch.zeros(3, 4, 2), torch.zeros(3).long()
    )
    assert torch.allclose(predicted.states[..., 1:5].norm(dim=-1), torch.ones(3, 4), atol=1e-5)


@pytest.mark.parametrize("end_unseen", [pytest.param(False, marks=pytest.mark.full), True])
def test_success_is_recognised_and_its_lower_bound_is_below_the_upper(end_unseen: bool) -> None:
    """Also where all that succeeded are demonstrations whose last state is unknown."""
    episodes = []
    for i in range(60):
        reached = i % 2 == 0
        path = torch.linspace(0, 1.0 if reached else 0.6, 11)[:, None].repeat(1, 2)
        path += 0.01 * torch.randn(11, 2, generator=torch.Generator().manual_seed(i))
        actions = (path[1:] - path[:-1]) * 5
        if unseen := end_unseen and reached:
            path[-1] = path[-2]
        episodes.append(Episode(path, actions, success=reached, demo=unseen, end_unseen=unseen))
    made = model()
    made.fit(episodes, 0, 800)
    start, chunk, _ = all_windows([episodes[0]])
    predicted = made.step(start, chunk, torch.zeros(len(chunk), dtype=torch.long))
    assert (predicted.success_low <= predicted.success_high).all()
    last = predicted.success_low[-1]
    assert last[-1] > 0.5
    assert last[:-2].max() < 0.5
    start, chunk, _ = all_windows([episodes[1]])
    failed = made.step(start, chunk, torch.zeros(len(chunk), dtype=torch.long))
    assert failed.success_low.max() < 0.5


def test_a_fit_goes_on_exactly_from_its_checkpoint() -> None:
    assert_goes_on(model(1), model(1), model(2), linear_episodes(5))


def assert_goes_on(
    straight: StateModel, stopped: StateModel, resumed: StateModel, episodes: list[Episode]
) -> None:
    """A model that goes on from the checkpoint of a stopped one learns the same as one that did not stop."""
    straight.fit(episodes, 0, 20)
    stopped.fit(episodes, 0, 20)
    resumed.restore(stopped.checkpoint())
    for each in (straight, resumed):
        each.fit(episodes, 2, 10)
    for a, b in zip(straight.state_dict().values(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_half_of_a_batch_is_new_and_three_tenths_are_failed_episodes() -> None:
    def episode(length: int, *, success: bool, demo: bool = False) -> Episode:
        return Episode(torch.zeros(length + 1, 1), torch.zeros(length, 1), success, demo)

    episodes = [
        episode(50, success=False, demo=True),
        *(episode(20, success=True) for _ in range(17)),
        episode(10, success=False),
        episode(20, success=True),
    ]
    weights = sampling_weights(episodes, 2)
    parts = weights * torch.tensor([float(len(e)) for e in episodes])
    assert torch.allclose(parts.sum(), torch.tensor(1.0))
    assert torch.allclose(parts[-2], torch.tensor(0.3), atol=1e-6)
    assert parts[-2:].sum() > 0.5
