"""The ensemble of features on data with known dynamics."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from robot_rl.imagination.config import LatentModelConfig
from robot_rl.imagination.episodes import Episode, Steps
from robot_rl.imagination.latent_model import LatentModel, LatentShape
from robot_rl.imagination.world_model import ChunkStart, Prediction, chunk_start
from tests.robot_rl.imagination.test_state_model import assert_goes_on, linear_episodes

SMALL = LatentModelConfig(hidden=[32], batch_size=64, members=3, latent=4, history=2)
CHUNK, FEATURES = 4, 10


def seen(episodes: list[Episode]) -> list[Episode]:
    """The episodes with the first dimension as the state, and linear functions of both as features."""
    mixing = torch.randn(2, FEATURES, generator=torch.Generator().manual_seed(5))
    return [replace(e, states=torch.cat([e.states[:, :1], e.states @ mixing + 1], 1)) for e in episodes]


def model(seed: int = 0, features_of: str = "base", config: LatentModelConfig = SMALL) -> LatentModel:
    shape = LatentShape(1 + FEATURES, 2, CHUNK, (), FEATURES, features_of)
    return LatentModel(config, shape, seed)


def whole_windows(episodes: list[Episode]) -> tuple[ChunkStart, Tensor, Tensor]:
    """Starts of chunks, their actions and the vectors that followed, of whole chunks."""
    steps = Steps(episodes, SMALL.history)
    windows = steps.windows(steps.starts, CHUNK)
    whole = windows.valid.all(1)
    return chunk_start(windows)[whole], windows.actions[whole], windows.states[whole]


def predict(made: LatentModel, begun: ChunkStart, chunk: Tensor) -> Prediction:
    return made.step(begun, chunk, torch.arange(len(chunk)) % made.members)


def root_mean_square(difference: Tensor) -> float:
    return float(difference.square().mean().sqrt())


@pytest.mark.full
def test_linear_dynamics_of_features_are_learned() -> None:
    made = model()
    made.fit(seen(linear_episodes(60)), 0, 1500)
    begun, chunk, states = whole_windows(seen(linear_episodes(5, seed=1)))
    wrong = (predict(made, begun, chunk).states - states) / made.scale
    still = (begun.frames[:, -1:] - states) / made.scale
    # The state's part is linear in the model, too.
    assert root_mean_square(wrong[..., 0]) < 1e-3 * root_mean_square(still[..., 0])
    assert root_mean_square(wrong) < 0.2 * root_mean_square(still)


def test_other_actions_lead_to_other_features() -> None:
    made = model()
    made.fit(seen(linear_episodes(10)), 0, 100)
    begun, chunk, _ = whole_windows(seen(linear_episodes(1, seed=2)))
    there, elsewhere = (predict(made, begun, actions).states[:, -1, 1:] for actions in (chunk, -chunk))
    assert (there - elsewhere).abs().amax(1).min() > 0.01


def test_what_the_components_leave_out_stays_as_it_was() -> None:
    made = model()
    made.fit(seen(linear_episodes(10)), 0, 20)
    begun, chunk, _ = whole_windows(seen(linear_episodes(1, seed=3)))
    outside = torch.randn(1 + FEATURES, generator=torch.Generator().manual_seed(0))
    outside[0] = 0
    standard = outside[1:] - made.basis @ (made.basis.T @ outside[1:])
    outside[1:] = standard * made.scale[1:]
    assert outside.norm() > 0.1
    moved = predict(made, replace(begun, frames=begun.frames + outside), chunk).states
    torch.testing.assert_close(moved - outside, predict(made, begun, chunk).states, atol=1e-4, rtol=0)


def jumps(count: int, shown: int, jump: int) -> list[Episode]:
    """Episodes of a number that is seen at one step alone, and to which the state jumps at a later step."""
    episodes = []
    for i in range(count):
        number = torch.rand((), generator=torch.Generator().manual_seed(i)) * 2 - 1
        states = torch.zeros(15, 1 + FEATURES)
        states[shown, 1:] = number
        states[jump:, 0] = number
        episodes.append(Episode(states, torch.zeros(14, 2), success=False))
    return episodes


@pytest.mark.full
@pytest.mark.parametrize(("shown", "jump"), [(0, 11), (4, 10)])
def test_the_first_frame_and_earlier_chunks_are_remembered(shown: int, jump: int) -> None:
    made = model(config=replace(SMALL, latent=1))
    made.fit(jumps(60, shown, jump), 0, 800)
    begun, chunk, states = whole_windows(jumps(20, shown, jump))
    # Windows that begin two steps before the jump; an episode has eleven.
    before = torch.arange(len(chunk)) % 11 == jump - 2
    begun, chunk, after = begun[before], chunk[before], states[before][:, -1, 0]
    context = begun.context
    assert context
    assert not begun.frames.any()
    assert (bool(context.first.any()), bool(context.frames.any())) == (shown == 0, shown > 0)
    predicted = predict(made, begun, chunk).states[:, -1, 0]
    assert (predicted - after).abs().mean() < 0.2 * after.abs().mean()
    blank = replace(begun, context=context.encoded(torch.zeros_like))
    forgotten = predict(made, blank, chunk).states[:, -1, 0]
    assert (forgotten - after).abs().mean() > 0.5 * after.abs().mean()


def test_the_context_of_an_imagined_chunk_is_that_of_the_real_one() -> None:
    episodes = seen(linear_episodes(2))
    steps = Steps(episodes, 2)
    row = torch.tensor([0, 3, 9])
    now, then = (steps.windows(at, CHUNK) for at in (row, row + CHUNK))
    after = chunk_start(now).after(now.actions, now.states)
    torch.testing.assert_close(vars(after.context), vars(then.context))
    assert then.context
    assert torch.equal(then.context.first, episodes[0].states[:1].expand(3, -1))
    assert torch.equal(then.context.frames[0], episodes[0].states[[0, 0]])
    assert not then.context.actions[0, 0].any()
    assert torch.equal(then.context.actions[2].flatten(0, 1), episodes[0].actions[5:13])


def test_a_fit_goes_on_exactly_from_its_checkpoint_and_not_with_another_base() -> None:
    episodes = seen(linear_episodes(5))
    stopped = model(1)
    assert_goes_on(model(1), stopped, model(2), episodes)
    other = model(1, features_of="another base")
    with pytest.raises(ValueError, match="predicts features of the base base, and the base is now another"):
        other.restore(stopped.checkpoint())
