"""Imagined branches with the task's own dynamics as the model, compared with values counted by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from robot_rl.data.replay_buffer import SwitchCost
from robot_rl.imagination.branches import Branches, Limits, TaskReward, judge
from robot_rl.imagination.layout import Layout
from robot_rl.imagination.values import BaseSampler
from robot_rl.imagination.world_model import ChunkStart, Prediction
from tests.robot_rl.imagination.point_task import CHUNK, RADIUS, Oracle, PointBase, PointRun

LIMITS = Limits(torch.ones(2), (1.0, 1.0), 0.5)


def test_rewards_and_discounts_of_a_chunk() -> None:
    chunk = torch.tensor([[1.0, 1.0, -1.0, -1.0]] * 2)[..., None]
    task_reward = TaskReward(0.5, offset=-1.0, switch=SwitchCost((0,), 0.25))
    past = torch.tensor([[0.0, 0.0, 0.0, -1.0], [0.0] * 4])[..., None]
    length, success = torch.tensor([3, 4]), torch.tensor([True, False])
    reward, discount = task_reward.of_chunk(chunk, past, length, success)
    # Steps of -1 each; a switch at the first step after a closed gripper, and at the third; success.
    assert reward.tolist() == pytest.approx([
        -1 - 0.25 + 0.5 * -1 + 0.25 * (-1 - 0.25 + 1),
        -1 + 0.5 * -1 + 0.25 * (-1 - 0.25) + 0.125 * -1,
    ])  # fmt: skip
    assert discount.tolist() == [0.0, 0.5**4]


def test_the_first_sure_success_ends_a_chunk_and_what_is_unsure_is_neither() -> None:
    low = torch.tensor([[0.0, 0.9, 0.9], [0.0, 0.2, 0.3], [0.0, 0.0, 0.1]])
    high = torch.tensor([[0.1, 1.0, 1.0], [0.1, 0.8, 0.9], [0.0, 0.1, 0.15]])
    outcome = judge(Prediction(torch.zeros(3, 3, 1), low, high, torch.zeros(3, 1)), 0.6)
    assert outcome.success.tolist() == [True, False, False]
    assert outcome.length.tolist() == [2, 3, 3]
    assert outcome.doubtful.tolist() == [False, True, False]


def branch(
    tmp_path: Path, model: Oracle, limits: Limits, trace: float | None = None, **options: bool
) -> dict[str, torch.Tensor]:
    """One branch from each of some places, at whose start the base acts as trained."""
    run = PointRun(tmp_path)
    learner, task_reward, fields = run.learner, TaskReward(0.9), run.method.replay_content.policy_fields
    layout = Layout(2)
    base = BaseSampler(PointBase(), 4, CHUNK, layout)
    branches = Branches(model, learner, base, task_reward, trace, fields, layout, **options)  # type: ignore[arg-type]
    places = torch.tensor([[0.4, 0.0], [0.0, 0.3], [0.05, 0.0]])
    start = ChunkStart(places[:, None].repeat(1, 2, 1), torch.zeros(3, CHUNK, 2))
    return branches.imagine(start, limits, torch.Generator().manual_seed(0))


def test_branches_follow_the_dynamics_and_stop_at_success(tmp_path: Path) -> None:
    rows = branch(tmp_path, Oracle(), LIMITS)
    assert len(rows["reward"]) > 3
    path = rows["state"][:, None] + 0.05 * rows["chunk"].cumsum(1)
    near = (path.norm(dim=-1) < RADIUS).float()
    success = near.any(1)
    length = torch.where(success, near.argmax(1) + 1, CHUNK)
    assert torch.allclose(rows["next.state"], path[:, -1], atol=1e-6)
    assert torch.allclose(rows["discount"], torch.where(success, 0.0, 0.9**length))
    assert torch.allclose(rows["reward"], torch.where(success, 0.9 ** (length - 1), 0.0))
    assert rows["chunk_mask"].sum(1).tolist() == length.tolist()
    # A second chunk begins where the first one led, unless that succeeded.
    going = rows["next.state"][:3][~success[:3]]
    assert torch.allclose(rows["state"][3:], going)
    assert torch.equal(rows["base_samples"][3:], rows["next.base_samples"][:3][~success[:3]])


class Unsure(Oracle):
    """Members disagree where x < `limit`."""

    limit = 0.2

    def step(self, start, chunk, member, length=None):  # type: ignore[no-untyped-def]
        far = start.frames[:, -1, :1] < self.limit
        made = super().step(start, chunk, member, length)
        return replace(made, disagreement=torch.where(far, 2.0, 0.5).expand(-1, 2))


def test_a_branch_ends_before_the_chunk_of_which_the_model_is_unsure(tmp_path: Path) -> None:
    rows = branch(tmp_path, Unsure(), LIMITS)
    assert (rows["state"][:, 0] >= 0.2).all()
    assert torch.allclose(rows["weight"], torch.full_like(rows["weight"], 1 / 1.5))
    # For comparison, as if it were sure.
    blind, sure = (branch(tmp_path, model, LIMITS, ignore_uncertainty=True) for model in (Unsure(), Oracle()))
    for name, value in blind.items():
        assert torch.equal(value, sure[name])


def test_a_branch_that_ends_early_gives_its_shorter_return_once_more(tmp_path: Path) -> None:
    """Value expansion over two chunks, of which the second is not used: its weight goes to the first one."""
    model = Unsure()
    model.limit = 0.39
    each, whole = (branch(tmp_path, model, LIMITS, trace) for trace in (None, 0.5))
    assert len(each["reward"]) == 1
    assert each["discount"] > 0
    for name in ("reward", "discount", "next.state", "chunk"):
        assert torch.equal(whole[name], each[name].repeat_interleave(2, 0))
    assert torch.allclose(whole["weight"], each["weight"] * torch.tensor([1, 0.5]))


def test_a_branch_that_ends_early_has_the_weight_of_all_longer_returns(tmp_path: Path) -> None:
    model = Unsure()
    model.limit = 0.39
    limits = replace(LIMITS, uncertainty=(LIMITS.uncertainty[0],) * 3)
    each, whole = (branch(tmp_path, model, limits, trace) for trace in (None, 0.5))
    assert torch.allclose(whole["weight"], each["weight"] * torch.tensor([1, 0.5 + 0.25]))


class Succeeds(Oracle):
    """Every first chunk succeeds from x > 0.2 on."""

    def step(self, start, chunk, member, length=None):  # type: ignore[no-untyped-def]
        success = (start.frames[:, -1, :1] > 0.2).float().expand(-1, CHUNK)
        return replace(super().step(start, chunk, member, length), success_low=success, success_high=success)


def test_a_return_that_ends_with_a_success_weighs_as_much_as_those_over_more_chunks(tmp_path: Path) -> None:
    each, whole = (branch(tmp_path, Succeeds(), LIMITS, trace) for trace in (None, 0.5))
    ends = each["discount"][:3] == 0
    assert ends.tolist() == [True, False, False]
    assert torch.allclose(whole["weight"][:3], torch.where(ends, 1.5, 1.0) * each["weight"][:3])
    assert len(whole["weight"]) == 5


def test_a_return_over_two_chunks_adds_up_from_the_first_state(tmp_path: Path) -> None:
    each = branch(tmp_path, Oracle(), LIMITS)
    whole = branch(tmp_path, Oracle(), LIMITS, trace=0.5)
    going = each["discount"][:3] > 0
    assert torch.allclose(whole["weight"][:3], each["weight"][:3])
    assert torch.equal(whole["state"][3:], each["state"][:3][going])
    assert torch.equal(whole["chunk"][3:], each["chunk"][:3][going])
    assert torch.equal(whole["next.state"], each["next.state"])
    expected = each["reward"][:3][going] + each["discount"][:3][going] * each["reward"][3:]
    assert torch.allclose(whole["reward"][3:], expected)
    assert torch.allclose(whole["discount"][3:], each["discount"][:3][going] * each["discount"][3:])
    assert torch.allclose(whole["weight"][3:], 0.5 * each["weight"][3:])
