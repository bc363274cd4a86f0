"""The tutorial on a task of one's own, followed to the letter, with fewer steps."""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from robot_rl.cli.main import main
from robot_rl.envs.experts import EXPERTS
from robot_rl.factory import make_env
from robot_rl.hardware.plugins import VARIABLE
from tests.conftest import SMALL_BASE, SMALL_RL

PAGE = Path(__file__).resolve().parent.parent / "docs" / "tutorials" / "own_task.md"
_BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FEW = {
    "states": ["count=3"],
    "collect": ["episodes=2"],
    "bc": [*SMALL_BASE, "method.steps=20", "threads=1"],
    "residual_chunk": [*SMALL_RL, "method.steps=40", "method.warmup_steps=20"],
    "eval": ["episodes=2", "num_envs=2"],
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder; what the tutorial registers is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    EXPERTS.pop("Hover", None)
    sys.modules.pop("my_tasks", None)


def test_who_follows_the_tutorial_has_a_policy_of_a_task_of_ones_own(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = []
    for language, info, body in _BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if language in ("python", "yaml"):
            path = here / info.split("file=")[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body, encoding="utf-8")
            continue
        program, *arguments = shlex.split(body)
        assert program == "robot-rl"
        methods = [word.removeprefix("method=") for word in arguments if word.startswith("method=")]
        done.append(methods[0] if methods else arguments[0])
        assert main([*arguments, *FEW[done[-1]]]) == 0, capsys.readouterr().err
    assert done == ["states", "collect", "states", "bc", "residual_chunk", "eval"]
    said = capsys.readouterr().out
    assert "data/hover.zarr: 2 episodes, 2 of the 2 new ones succeeded" in said
    assert "hover: 2 episodes from hover.safetensors" in said
    assert (here / "runs" / "hover_residual_chunk_s0" / "eval" / "summary.json").is_file()
    assert (here / "sim_assets" / "initial_states" / "Wipe.safetensors").is_file()
    env = make_env("hover")
    env.sim.stayed = 4
    state = env.get_state()
    env.reset(seed=0)
    assert env.sim.stayed == 0
    env.set_state(state)
    assert env.sim.stayed == 4
    env.close()
