"""method.windows=decisions: the base is asked, and cameras are rendered and encoded, once per chunk."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

from robot_rl.cli.compose import load_group
from robot_rl.envs.renderer import EnvCameraRenderer
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.vector import TaskVectorEnv
from robot_rl.errors import UserError
from robot_rl.factory import make_robosuite_env
from robot_rl.launchers.software import installed_software
from robot_rl.policies.bases.base_policy import Chunk, ObservationHistory
from robot_rl.policies.bases.diffusion import DiffusionPolicy
from robot_rl.policies.bases.uniform import UniformConfig, UniformPolicy
from robot_rl.policies.finetuned.candidates import CandidatesSpec
from robot_rl.policies.finetuned.finetuned_policy import Exploration
from robot_rl.policies.finetuned.residual_chunk import ResidualChunk
from robot_rl.policies.nets.critic import ValueSpec
from robot_rl.policies.nets.encoder import EncoderSpec
from robot_rl.saved_policies.loading import load_policy
from robot_rl.training.rollout import TrainingRollout
from robot_rl.workers.collector import Collector, CollectorJob, Weights
from tests.conftest import SMALL_RL, RunCommand
from tests.robot_rl.methods.conftest import SEEN
from tests.robot_rl.training.test_training import assert_same, final_state, metrics

HORIZON, CHUNK, ENVS, BATCH = 10, 4, 2, 16
EPISODE = 4
"""Observations of an episode for which the base is asked: steps 0, 4 and 8, and the last observation."""
STEPS = 2 * ENVS * HORIZON
"""Two episodes of each environment; their length is the time limit."""
ASKED = 2 * ENVS * EPISODE + ENVS
"""And the first decision after them."""


def command(method: str, base: Path, runs: Path, name: str, *more: str) -> list[str]:
    run = [f"method={method}", f"base={base}", f"runs_dir={runs}", f"name={name}", f"task.horizon={HORIZON}"]
    small = [*SMALL_RL, "method.warmup_steps=10", "method.critic_warmup=4", f"log_every={STEPS}"]
    return [*run, *small, *SEEN, "method.demo_ratio=0", "method.windows=decisions", *more]


class Watch:
    """Counts the observations that acting renders, and gives to the base; updates have another number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rendered = self.encoded = self.asked = 0
        frame, encode = EnvCameraRenderer.frame, DiffusionPolicy.features
        sample = DiffusionPolicy.sample_from_features

        def watched_frame(renderer: EnvCameraRenderer) -> np.ndarray:
            self.rendered += 1
            return frame(renderer)

        def watched_encode(base: DiffusionPolicy, obs: ObservationHistory) -> Tensor:
            self.encoded += len(obs["state"]) if len(obs["state"]) != BATCH else 0
            return encode(base, obs)

        def watched_sample(base: DiffusionPolicy, features: Tensor, **given: Any) -> Chunk:
            self.asked += len(features) if len(features) != BATCH else 0
            return sample(base, features, **given)

        begin = TrainingRollout.begin_episodes

        def watched_begin(rollout: TrainingRollout, mask: NDArray[np.bool_] | None = None) -> None:
            if mask is None:
                # What was counted before are checks of the base.
                self.rendered = self.encoded = self.asked = 0
            begin(rollout, mask)

        monkeypatch.setattr(TrainingRollout, "begin_episodes", watched_begin)
        monkeypatch.setattr(EnvCameraRenderer, "frame", watched_frame)
        monkeypatch.setattr(DiffusionPolicy, "features", watched_encode)
        monkeypatch.setattr(DiffusionPolicy, "sample_from_features", watched_sample)


def counted(run: Path, name: str) -> float:
    """Observations for which the base was asked, or that it encoded, as metrics.csv says."""
    ((_, rate),) = metrics(run)[f"train/base_{name}"]
    return round(rate * STEPS, 6)


STEERED = 5 * ENVS
"""Decisions after the warm-up, which covers two chunks, at which DSRL asks the base for its own noise too."""
RUNS = {
    # Extra requests of the base while acting, and encodings of an observation.
    "residual_chunk base": (0, 3),
    "residual_chunk conv": (0, 1),
    "expo conv": (0, 1),
    "expo state": (0, 1),
    "dsrl_na base": (STEERED, 3),
    "dsrl_na conv": (STEERED, None),
}


@pytest.mark.parametrize(
    "name", ["residual_chunk base", *(pytest.param(each, marks=pytest.mark.full) for each in [*RUNS][1:])]
)
def test_the_base_is_asked_and_cameras_are_rendered_once_per_chunk(
    name: str, tmp_path: Path, robot_rl: RunCommand, seeing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And once at a time limit; other frames are not read, and a resumed run is the same, to the bit."""
    method, encoder = name.split()

    def train(run: str, *steps: int) -> None:
        for until in steps:
            more = (f"method.steps={until}", f"method.encoder={encoder}")
            robot_rl("train", *command(method, seeing, tmp_path, run, *more))

    watch, (extra, encodings) = Watch(monkeypatch), RUNS[name]
    train("few", STEPS)
    assert watch.rendered == ASKED
    assert watch.asked == counted(tmp_path / "few", "queries") == ASKED + extra
    if encoder == "base":
        assert watch.encoded == counted(tmp_path / "few", "encodings")
    # Without stored features, DSRL's second request encodes the images again.
    assert watch.encoded == (watch.asked if encodings is None else encodings * ASKED)

    train("resumed", 26, STEPS)
    state = final_state(tmp_path / "few")
    assert_same(state, final_state(tmp_path / "resumed"))
    assert metrics(tmp_path / "few") == metrics(tmp_path / "resumed")

    monkeypatch.setattr(TaskVectorEnv, "draw_next", lambda *_: None)
    train("all", STEPS)
    assert watch.rendered == 2 * ENVS * (HORIZON + 1) + ENVS
    assert_same(state["learner"], final_state(tmp_path / "all")["learner"])


def test_training_executes_whole_chunks_and_evaluation_may_replan_after_half(
    robot_rl: RunCommand, base_run: Path, tmp_path: Path
) -> None:
    run = [f"base={base_run}", f"runs_dir={tmp_path}", "name=run", *SMALL_RL, "method.demo_ratio=0"]
    more = ["method.windows=decisions", "method.steps=40", "method.warmup_steps=10", "task.horizon=10"]
    robot_rl("train", "method=residual_chunk", *run, *more)
    replay = final_state(tmp_path / "run")["replay"]
    begun = replay["data.chunk_step"][:, : int(replay["count"].min())]
    # Ten steps, and the last observation, for which the base was asked.
    assert begun[0, :11].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 0]
    assert (replay["data.base_samples"].flatten(2).abs().sum(2)[:, : begun.shape[1]] > 0).equal(begun == 0)
    policy = load_policy(tmp_path / "run")
    policy.reset([0], [0])
    frame = {"state": np.zeros(policy.base.spec.state_size, np.float32)}
    positions = [int(policy.act({k: v[None] for k, v in frame.items()}).chunk_step[0]) for _ in range(6)]
    assert positions == [0, 1, 0, 1, 0, 1]


def test_a_worker_asks_the_base_at_decisions_alone() -> None:
    task = replace(load_group("task", "lift", TaskConfig), horizon=10)
    env = make_robosuite_env(task)
    state, action = env.observation_spec.state_size, len(env.action_spec)
    env.close()
    value = ValueSpec("mse", 0.0, 1.0)
    spec = CandidatesSpec(
        encoder=EncoderSpec(state),
        value=value,
        hidden=(8,),
        scale=(0.5,) * action,
        num_critics=2,
        layer_norm=True,
        candidates=2,
        uncertainty_penalty=0.5,
    )
    base = UniformPolicy(UniformConfig(horizon=CHUNK, execute=CHUNK), state, action)
    networks = ResidualChunk(base, spec)
    fields = ["state", "chunk_step", "base_samples"]
    job = CollectorJob(task, networks, Exploration(0.1), fields, False, True, [], installed_software())
    collector = Collector()
    collector.build(job, 1)
    steps = collector.collect(Weights(1, {}), True, 7).steps
    assert [int(step.fields["chunk_step"][0]) for step in steps[:11]] == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 0]
    assert [("base_samples" in step.fields) for step in steps[:5]] == [True, False, False, False, True]
    last = steps[9].last
    assert last["chunk_step"] == 0
    assert last["base_samples"].shape == (1, 2, CHUNK, action)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("method.warmup_steps=9", "method.num_envs=2"), r"method\.warmup_steps=9: .* set it to at least 10"),
        (
            ("method.warmup_steps=20", "method.num_envs=2", "method.replay_capacity=19"),
            r"method\.replay_capacity=19: .*two chunks of each environment take 20 rows",
        ),
        (("method.n_step=6",), r"method\.n_step=6: .*chunks of 4 executed steps; choose a multiple of 4"),
        (("imagination=state", "device=cpu"), "begins at any step, .*: leave one of them out"),
    ],
)
def test_what_windows_at_decisions_cannot_do_is_refused(
    given: tuple[str, ...], message: str, tmp_path: Path, robot_rl: RunCommand, base_run: Path
) -> None:
    run = [f"base={base_run}", f"runs_dir={tmp_path}", "method.demo_ratio=0", "method.windows=decisions"]
    with pytest.raises(UserError, match=message) as caught:
        robot_rl("train", "method=expo", *run, *given)
    assert "\n" not in str(caught.value)
    assert not any(tmp_path.iterdir())
