"""The learner's side of training with actors, without their processes."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch

from robot_rl.cli.compose import compose
from robot_rl.cli.main import load_command
from robot_rl.commands import train
from robot_rl.data.replay_buffer import ReplayBuffer
from robot_rl.hardware.protocol.large_messages import pack
from robot_rl.hil.learner import HilTraining
from robot_rl.hil.link.messages import PROTOCOL, End, Hello, Step, Welcome
from robot_rl.learning.distributed import Processes
from robot_rl.methods.registry import build_method
from robot_rl.policies.store import load_base, save_policy
from robot_rl.saved_policies.loading import policy_directory
from robot_rl.training.components import OffPolicyComponents
from robot_rl.training.logger import RunLogger
from robot_rl.training.loop import Intervals, Run
from robot_rl.training.updater import Updater
from tests.robot_rl.hil.training import arguments
from tests.robot_rl.imagination.point_task import Silent

Make = Callable[..., HilTraining]


@pytest.fixture
def make(demonstrations: Path, base_run: Path, tmp_path: Path) -> Iterator[Make]:
    """Makes the learner of a run, which resumes if there is a checkpoint."""
    (tmp_path / "run").mkdir()
    with ExitStack() as closing:

        def make(*more: str, base: Path = base_run) -> HilTraining:
            options = arguments(demonstrations, base, tmp_path, "run", "method.steps=200", *more)
            config = compose(load_command("train"), options)
            inputs = train._run_inputs(config, torch.device("cpu"), Processes(), closing)
            method = build_method(config.method)
            components = train.build(method, inputs, closing, None)
            assert isinstance(components, OffPolicyComponents)
            logger = RunLogger(tmp_path / "run", clock=lambda: 0.0)
            closing.callback(logger.close)
            run = Run(tmp_path / "run", logger, Silent(), lambda: False, lambda _: None)
            intervals = Intervals(200, 50, 1000)
            return HilTraining(method, components, inputs, config.hil, intervals, run, closing)  # type: ignore[arg-type]

        yield make


def several(folder: Path, name: str = "l") -> tuple[str, str, str]:
    return "hil.actors=2", f"hil.link=ipc://{folder / name}", "method.replay_capacity=400"


def fields(replay: ReplayBuffer, value: float) -> dict:
    return {
        name: pack(np.full(shape, value if name == "state" else 0, torch.zeros(0, dtype=dtype).numpy().dtype))
        for name, (shape, dtype) in replay.fields.items()
    }


def step(replay: ReplayBuffer, episode: int, index: int, value: float = 0.0) -> Step:
    action = pack(np.zeros(replay.data["action"].shape[1], np.float32))
    return Step(
        episode=episode,
        index=index,
        version=0,
        source="policy",
        fields=fields(replay, value),
        action=action,
        proposed=action,
        reward=0.0,
        terminated=False,
    )


def end(replay: ReplayBuffer, episode: int, index: int, value: float = 0.0) -> End:
    content = fields(replay, value)
    return End(episode=episode, index=index, fields=content, success=True, interrupted="", interventions=0)


def replay_of(training: HilTraining) -> ReplayBuffer:
    updater: Updater = training._updater
    return updater.replay


def test_steps_of_two_actors_make_exact_updates_and_no_window_mixes_them(make: Make, tmp_path: Path) -> None:
    training = make(*several(tmp_path))
    replay = replay_of(training)
    for episode in range(3):
        for index in range(10):
            training._process(0, step(replay, episode, index, 100.0 + index))
            # The second is slower, and in one long episode.
            if index % 2:
                training._process(1, step(replay, 0, 5 * episode + index // 2, 200.0))
        training._process(0, end(replay, episode, 10, 110.0))
    training._learn()
    assert training._step == 45
    assert [stream.steps for stream in training._streams] == [30, 15]
    # 20 steps of warm-up, then 10 updates of the critics, then one for each step.
    assert training._updates == 10 + 25
    batch = replay.sample(512, n_step=8, gamma=0.9, rng=np.random.default_rng(0))
    for name in ("state", "next.state"):
        assert set((batch[name][:, 0] // 100).tolist()) == {1.0, 2.0}
    assert torch.equal(batch["state"][:, 0] // 100, batch["next.state"][:, 0] // 100)


def test_an_actor_that_comes_back_cuts_its_own_episode_alone(make: Make, tmp_path: Path) -> None:
    training = make(*several(tmp_path))
    replay = replay_of(training)
    for number in (0, 1):
        for index in range(4):
            training._process(number, step(replay, 0, index, 100.0 * number + index))
        training._server.actors[number].position = (0, 4)
    hello = Hello(protocol=PROTOCOL, src="new", connection=0, run="", episodes=())
    welcome = training._welcome(1, hello)
    assert (welcome.episode, welcome.index, welcome.steps) == (1, 0, 8)
    assert training._server.actors[0].position == (0, 4)
    last = replay.data["last"].view(2, -1)
    assert last.sum(1).tolist() == [0, 1]
    assert training._welcome(0, hello).job["seed"] != welcome.job["seed"]
    # Its spool is of another actor.
    with pytest.raises(ValueError, match="of another run, base policy or actor: begin a new run, or give"):
        training._welcome(0, Hello(protocol=PROTOCOL, src="n", connection=0, run=welcome.run, episodes=()))


def test_episodes_of_two_spools_with_the_same_numbers_are_never_mixed(make: Make) -> None:
    training = make()
    replay, actor, stream = replay_of(training), training._server.actors[0], training._streams[0]

    def hello(spool: str, *episodes: int) -> Welcome:
        return training._welcome(
            0, Hello(protocol=PROTOCOL, src="n", connection=0, run="", spool=spool, episodes=episodes)
        )

    assert hello("a").episode == 0
    training._process(0, step(replay, 0, 0))
    actor.position = (0, 1)
    # Another spool has an episode of this number, of which the first step was never received.
    with pytest.raises(ValueError, match="spool has 1 episodes that cannot be added"):
        hello("b", 0, 1)
    assert hello("a", 0).index == 1
    welcome = hello("b", 1, 2)
    assert (welcome.episode, welcome.index) == (1, 0)
    assert replay.data["last"].sum() == 1
    actor.position = (3, 0)
    # Episode 0 was received as far as it goes; 1 and 2 are those of the other spool.
    with pytest.raises(ValueError, match="spool has 2 episodes that cannot be added"):
        hello("a", 0, 1, 2, 3)
    assert hello("b", 1, 2, 3).episode == 3
    welcome = hello("a", 0, 4)
    assert (welcome.episode, welcome.index) == (4, 0)
    assert stream.state_dict()["received"] == {"a": 1, "b": 3}


def test_a_spool_of_another_base_is_refused_also_without_a_checkpoint(
    make: Make, base_run: Path, tmp_path: Path
) -> None:
    """Its features and samples are those of the base that acted."""
    welcome = make()._welcome(0, Hello(protocol=PROTOCOL, src="n", connection=0, run="", episodes=()))
    hello = Hello(protocol=PROTOCOL, src="n", connection=0, run=welcome.run, episodes=(0,))
    assert make()._welcome(0, hello).run == welcome.run
    base, meta = load_base(policy_directory(base_run))
    next(base.parameters()).data += 1
    save_policy(base, tmp_path / "other", meta)
    with pytest.raises(ValueError, match="of another run or base policy: begin a new run"):
        make(base=tmp_path / "other")._welcome(0, hello)


def test_the_end_of_an_episode_after_the_last_checkpoint_stays_at_the_actor(make: Make) -> None:
    """A second checkpoint of the same step is not written."""
    training = make()
    replay, actor = replay_of(training), training._server.actors[0]
    training._process(0, step(replay, 0, 0))
    actor.position = (0, 1)
    training._save()
    training._process(0, end(replay, 0, 1))
    actor.position = (1, 0)
    training._save()
    assert actor.checkpointed == 0
    training._process(0, step(replay, 1, 0))
    actor.position = (1, 1)
    training._save()
    assert actor.checkpointed == 1


def test_a_run_with_several_actors_resumes_at_the_position_of_each(make: Make, tmp_path: Path) -> None:
    training = make(*several(tmp_path))
    replay = replay_of(training)
    for number, steps in ((0, 3), (1, 5)):
        for index in range(steps):
            training._process(number, step(replay, 0, index))
        training._server.actors[number].position = (0, steps)
    training._save()
    resumed = make(*several(tmp_path, "m"))
    assert [actor.position for actor in resumed._server.actors] == [(0, 3), (0, 5)]
    assert [stream.steps for stream in resumed._streams] == [3, 5]
    assert resumed._step == resumed._server.steps == 8
