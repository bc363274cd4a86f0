"""Runs with `base=remote` learn what a run in one process learns, also if the server is lost meanwhile."""

from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from robot_rl.envs.observation import Observation
from robot_rl.errors import ServerLost, UserError
from robot_rl.policies.chunk_runner import PolicyOutput
from robot_rl.policy_client.remote_base import RemoteBase
from robot_rl.policy_server.inference import PolicyInference
from robot_rl.policy_server.server import Listen, PolicyServer
from robot_rl.report.figures import TITLES
from robot_rl.runs import list_checkpoints
from robot_rl.saved_policies.loading import load_networks
from robot_rl.training.logger import read_metrics
from robot_rl.training.periodic_evaluation import PeriodicEvaluation
from robot_rl.training.rollout import TrainingRollout
from tests.conftest import SMALL_RL, RunCommand
from tests.robot_rl.policy_client.test_lost_servers import set_timeout

METHODS = {
    "expo": ("method=expo", *SMALL_RL, "method.steps=32", "method.warmup_steps=8", "task.horizon=10"),
    "expo decisions": (
        "method=expo",
        *SMALL_RL,
        "method.windows=decisions",
        "method.steps=32",
        "method.warmup_steps=10",
        "task.horizon=10",
    ),
    "dsrl_na of features": (
        "method=dsrl_na",
        *SMALL_RL,
        "method.encoder=base",
        "method.steps=32",
        "method.warmup_steps=8",
        "task.horizon=10",
    ),
    "residual_ppo": (
        "method=residual_ppo",
        "method.num_envs=2",
        "method.rollout_steps=4",
        "method.hidden=[16,16]",
        "threads=1",
        "method.steps=24",
        "task.horizon=10",
    ),
}


def serve(run: Path, port: int = 0) -> tuple[PolicyServer, str]:
    networks, meta = load_networks(run)
    server = PolicyServer(PolicyInference(networks, meta["environment"], 0), Listen(port=port))
    return server, f"ws://127.0.0.1:{server.start()}"


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(list_checkpoints(run / "checkpoints")[-1] / "policy" / "weights.safetensors")


def assert_same(one: Path, other: Path) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
    series = [read_metrics(run / "metrics.csv") for run in (one, other)]
    for name in series[0]:
        found = [[(row[0], row[-1]) for row in each[name]] for each in series]
        assert found[0] == found[1], name


ACT = TrainingRollout._act


def losing(server: PolicyServer, at: str) -> Callable[..., PolicyOutput]:
    """`TrainingRollout._act`, which first closes the server at the third decision or an episode's end."""
    left = {"decision": 3, "end": 1}

    def act(self: TrainingRollout, obs: Observation, **given: Any) -> PolicyOutput:
        kind = "decision" if given.get("env_ids") is None else "end"
        left[kind] -= 1
        if kind == at and left[kind] == 0:
            server.close()
            base = self._policy.base
            assert isinstance(base, RemoteBase)
            set_timeout(base, 0.5)
        return ACT(self, obs, **given)

    return act


@pytest.mark.parametrize(
    "method", [name if name == "expo" else pytest.param(name, marks=pytest.mark.full) for name in METHODS]
)
def test_a_run_is_the_same_with_the_base_behind_a_server_that_is_lost_twice(
    method: str,
    tmp_path: Path,
    robot_rl: RunCommand,
    base_run: Path,
    demonstrations: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    common = (*METHODS[method], f"data={demonstrations}", f"runs_dir={tmp_path}", "log_every=4")
    robot_rl("train", *common, f"base={base_run}", "name=local")
    hint = "method.windows=decisions asks it once per chunk"
    assert hint not in capsys.readouterr().err
    port = 0
    for lose_at in ("decision", "end", ""):
        server, url = serve(base_run, port)
        port = int(url.rsplit(":", 1)[1])
        command = (*common, "base=remote", f"base.url={url}", "base.timeout=60", "name=remote")
        monkeypatch.setattr(TrainingRollout, "_act", losing(server, lose_at))
        try:
            if not lose_at:
                robot_rl("train", *command)
            else:
                with pytest.raises(ServerLost, match="look at why it ended; the run is saved up to here"):
                    robot_rl("train", *command)
        finally:
            server.close()
    assert_same(tmp_path / "local", tmp_path / "remote")
    assert (hint in capsys.readouterr().err) == (method in ("expo", "dsrl_na of features"))


@pytest.mark.full
@pytest.mark.parametrize(("method", "every"), [("expo", 16), ("residual_ppo", 12)])
def test_an_evaluation_in_which_the_server_is_lost_is_made_after_all(
    method: str, every: int, tmp_path: Path, robot_rl: RunCommand, base_run: Path, demonstrations: Path
) -> None:
    """Once in the middle of a run, and once after its last step."""
    evaluated = (f"eval_every={every}", "eval_episodes=1", f"save_every={every}")
    common = (*METHODS[method], *evaluated, f"data={demonstrations}", f"runs_dir={tmp_path}", "log_every=12")
    robot_rl("train", *common, f"base={base_run}", "name=local")
    port = 0
    # The first evaluation of the second session is the one that the first session lacks.
    for lost in (1, 2, 0):
        server, url = serve(base_run, port)
        port = int(url.rsplit(":", 1)[1])
        command = (*common, "base=remote", f"base.url={url}", "base.timeout=2", "name=remote")
        with pytest.MonkeyPatch.context() as patch, closing(server):
            patch.setattr(PeriodicEvaluation, "evaluate", without(server, lost))
            with pytest.raises(ServerLost, match="saved up to here") if lost else nullcontext():
                robot_rl("train", *command)
    assert_same(tmp_path / "local", tmp_path / "remote")
    for folder in ("evaluations", "policies"):
        local, remote = ({path.name for path in (tmp_path / run / folder).iterdir()} for run in RUNS)
        assert local == remote
        assert len(local) == 2


RUNS = ("local", "remote")
EVALUATE = PeriodicEvaluation.evaluate


def without(server: PolicyServer, number: int) -> Callable[..., Any]:
    """`PeriodicEvaluation.evaluate`, which first closes the server at its call of this number."""
    left = number

    def evaluate(self: PeriodicEvaluation, *given: Any) -> Any:
        nonlocal left
        left -= 1
        if not left:
            server.close()
        return EVALUATE(self, *given)

    return evaluate


@pytest.mark.full
def test_how_often_the_base_is_asked_is_reported(
    tmp_path: Path, robot_rl: RunCommand, base_run: Path
) -> None:
    """At every step with samples for the replay, else where a chunk starts."""
    rates, per_update = {}, {}
    for method in ("expo", "residual", "dsrl_na"):
        robot_rl(
            "train",
            f"method={method}",
            *SMALL_RL,
            "method.demo_ratio=0",
            "method.steps=16",
            "method.warmup_steps=4",
            f"base={base_run}",
            f"runs_dir={tmp_path}",
            f"name={method}",
            "log_every=16",
        )
        found = read_metrics(tmp_path / method / "metrics.csv")
        rates[method] = float(found["train/base_queries"][0][-1])
        per_update[method] = [float(row[-1]) for row in found.get("learn/base_queries", ())]
    # Each update for the next values of 16 rows, and every second one to distil.
    assert per_update == {"expo": [], "residual": [], "dsrl_na": [pytest.approx(24, rel=0.1)]}
    rates.pop("dsrl_na")
    # The first decision, and those after each of the eight steps of two environments.
    assert rates == {"expo": 18 / 16, "residual": 6 / 16}
    assert "train/base_queries" in TITLES


@pytest.mark.full
def test_methods_that_run_the_base_in_updates_on_observations_refuse_a_server(
    tmp_path: Path, robot_rl: RunCommand, demonstrations: Path, base_run: Path
) -> None:
    server, url = serve(base_run)
    try:
        for options, words in (
            (("method=dsrl_na",), "is a server: add method.encoder=base if it gives features"),
            (("method=expo", "method.base_lr=1e-5"), "trains the base, and .* is a server: leave it out"),
        ):
            with pytest.raises(UserError, match=words):
                robot_rl("train", *options, "base=remote", f"base.url={url}", f"runs_dir={tmp_path}")
        imagined = ("method.encoder=base", "imagination=latent", "device=cpu", f"data={demonstrations}")
        with pytest.raises(UserError, match="a server, so that imagination=latent cannot query it at pred"):
            robot_rl(
                "train",
                "method=residual",
                "base=remote",
                f"base.url={url}",
                f"runs_dir={tmp_path}",
                *imagined,
            )
        gradients = ("method=dsrl_na", "method.encoder=base", "method.bc_weight=1", f"runs_dir={tmp_path}")
        with pytest.raises(UserError, match="needs gradients through the base policy"):
            robot_rl("train", *gradients, "base=remote", f"base.url={url}")
        with pytest.raises(UserError, match="task was lift, here it is can"):
            robot_rl("train", "method=residual", "task=can", "base=remote", f"base.url={url}")
        with pytest.raises(UserError, match="trains a base policy: choose base=diffusion, not a server"):
            robot_rl("train", "method=bc", f"data={demonstrations}", "base=remote", f"base.url={url}")
    finally:
        server.close()


@pytest.mark.full
def test_a_served_base_is_evaluated_like_the_same_one_here(
    tmp_path: Path, robot_rl: RunCommand, base_run: Path
) -> None:
    server, url = serve(base_run)
    try:
        results = []
        for policy, out in ((str(base_run), tmp_path / "here"), (url, tmp_path / "there")):
            robot_rl("eval", f"policy={policy}", f"out={out}", "episodes=2", "num_envs=2")
            results.append((out / "episodes.csv").read_text())
        assert results[0] == results[1]
        with pytest.raises(UserError, match=r"has no directory: add out=…"):
            robot_rl("eval", f"policy={url}")
    finally:
        server.close()
