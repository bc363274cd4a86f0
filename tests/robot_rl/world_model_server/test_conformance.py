"""What every world model promises, of models in this process and of the same ones in another process.

The simulator itself is the `oracle`: the point task's state is all that its next state depends on. One of
robosuite cannot be set from an observation, which has no velocities.
"""

import importlib.util
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path

import pytest
import torch

from robot_rl.imagination.episodes import Episode
from robot_rl.imagination.world_model import ChunkStart, Prediction, WorldModel
from tests.robot_rl.imagination.point_task import CHUNK, STEP
from tests.robot_rl.world_model_server.served_models import MODELS, ROOT, connect, served, served_elsewhere

Make = Callable[[], WorldModel]
NAMES = [f"{name}_{place}" for name in MODELS for place in ("here", "served")]


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with served_elsewhere(*MODELS, folder=tmp_path_factory.mktemp("models")) as (_, found):
        yield found


@pytest.fixture
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes the model as it is when a run begins; one that is served at a time."""
    name, place = request.param.split("_")
    opened = []

    def made() -> WorldModel:
        if place == "here":
            return MODELS[name]()
        for model in opened:
            model.close()
        opened.append(connect(request.getfixturevalue("addresses")[name]))
        return opened[-1]

    yield made
    for model in opened:
        model.close()


every_model = pytest.mark.parametrize("make", NAMES, indirect=True)


def episodes(count: int = 4, length: int = 11, seed: int = 0) -> list[Episode]:
    generator = torch.Generator().manual_seed(seed)
    found = []
    for i in range(count):
        actions = 2 * torch.rand(length, 2, generator=generator) - 1
        begin = torch.rand(1, 2, generator=generator)
        states = torch.cat([begin, begin + (STEP * actions).cumsum(0)])
        found.append(Episode(states, actions, success=i % 2 == 0, demo=i == 0))
    return found


def chunk_start(count: int, seed: int = 0) -> tuple[ChunkStart, torch.Tensor, torch.Tensor]:
    """Where chunks begin, the chunks, and the members that predict."""
    generator = torch.Generator().manual_seed(seed)
    past, chunk = (2 * torch.rand(count, CHUNK, 2, generator=generator) - 1 for _ in range(2))
    return ChunkStart(torch.rand(count, 2, 2, generator=generator), past), chunk, torch.arange(count) % 2


def equal(a: Prediction, b: Prediction) -> bool:
    return all(torch.equal(x, y) for x, y in zip(vars(a).values(), vars(b).values(), strict=True))


@every_model
def test_predictions_have_the_promised_shapes_and_are_probabilities(make: Make) -> None:
    model = make()
    losses = model.fit(episodes(), 0, 3)
    assert all(isinstance(value, float) for value in losses.values())
    assert model.scale.shape == (2,)
    made = model.step(*chunk_start(7))
    assert made.states.shape == (7, CHUNK, 2)
    assert made.success_low.shape == made.success_high.shape == (7, CHUNK)
    assert made.disagreement.shape == (7, 2)
    assert ((made.success_low >= 0) & (made.success_low <= made.success_high)).all()
    assert (made.success_high <= 1).all()
    assert all(part.dtype == torch.float32 for part in vars(made).values())


@every_model
def test_the_same_question_has_the_same_answer(make: Make) -> None:
    model = make()
    model.fit(episodes(), 0, 3)
    first = model.step(*chunk_start(5))
    model.step(*chunk_start(9, seed=1))
    assert equal(first, model.step(*chunk_start(5)))


@every_model
def test_other_actions_lead_elsewhere(make: Make) -> None:
    model = make()
    model.fit(episodes(20), 0, 10)
    begin, chunk, member = chunk_start(5)
    there, back = model.step(begin, chunk, member), model.step(begin, -chunk, member)
    apart = 2 * STEP * chunk.sum(1)
    assert torch.allclose((there.states - back.states)[:, -1], apart, atol=0.05)


@every_model
def test_actions_that_are_not_executed_change_nothing(make: Make) -> None:
    model = make()
    model.fit(episodes(), 0, 3)
    begin, chunk, member = chunk_start(5)
    other = chunk.clone()
    other[:, 2:] = -1
    length = torch.full((5,), 2)
    cut = [model.step(begin, actions, member, length).states[:, :2] for actions in (chunk, other)]
    assert torch.equal(*cut)


@every_model
def test_a_model_goes_on_exactly_from_what_was_saved(make: Make) -> None:
    seen = episodes()
    straight = make()
    straight.fit(seen, 0, 3)
    saved = deepcopy(straight.checkpoint())
    straight.fit([*seen, *episodes(2, seed=1)], 2, 3)
    after = straight.step(*chunk_start(5))
    resumed = make()
    resumed.restore(saved)
    resumed.fit([*seen, *episodes(2, seed=1)], 2, 3)
    assert equal(after, resumed.step(*chunk_start(5)))


@every_model
def test_a_new_run_begins_with_the_model_as_it_was_given(make: Make) -> None:
    first = make()
    first.fit(episodes(), 0, 3)
    made = first.step(*chunk_start(3))
    second = make()
    second.fit(episodes(), 0, 3)
    assert equal(made, second.step(*chunk_start(3)))


def test_the_example_in_the_docs_is_a_model(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "imagination.md").read_text(encoding="utf-8")
    program = page.partition("```python\n")[2].partition("environment = Dataset(")[0]
    path = tmp_path / "still.py"
    path.write_text(program)
    spec = importlib.util.spec_from_file_location("still", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with served(module.Still(2), f"ipc://{tmp_path / 'model'}") as address:
        model = connect(address)
        model.fit(episodes(), 0, 3)
        begin, chunk, _ = chunk_start(5)
        made = model.step(begin, chunk, torch.zeros(5, dtype=torch.int64))
        assert torch.equal(made.states[:, -1], begin.frames[:, -1])
        model.restore(model.checkpoint())
        model.close()


@pytest.mark.parametrize("name", list(MODELS))
def test_a_served_model_is_equal_to_the_local_one_to_the_bit(name: str, addresses: dict[str, str]) -> None:
    torch.set_num_threads(1)
    local, remote = MODELS[name](), connect(addresses[name])
    seen = episodes()
    for newest, episode_count in ((0, 2), (2, 4)):
        assert local.fit(seen[:episode_count], newest, 4) == remote.fit(seen[:episode_count], newest, 4)
        assert torch.equal(local.scale, remote.scale)
        for count in (1, 33):
            begin, chunk, member = chunk_start(count, seed=count)
            length = torch.arange(count) % CHUNK + 1
            for each in (None, length):
                assert equal(local.step(begin, chunk, member, each), remote.step(begin, chunk, member, each))
    remote.close()
