"""The tutorials, followed to the letter, with fewer steps and smaller networks."""

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from robot_rl.cli.main import main
from robot_rl.envs.experts import EXPERTS
from robot_rl.factory import make_robosuite_env
from robot_rl.hardware.plugins import VARIABLE
from tests.conftest import SMALL_BASE, SMALL_RL, SMALL_VLA
from tests.robot_rl.policy_server.openpi_client import make_openpi_client
from tests.robot_rl.robot.deploy.test_deploy import serving, short, unhurried
from tests.robot_rl.terminal import Terminal

__all__ = ["unhurried"]  # a fixture, for every test here

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "tutorials"
Block = tuple[str, str, str]
"""Language, the rest of its line, and text."""
_BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FEW = {
    "states": ["count=3"],
    "collect": ["episodes=2"],
    "data validate": ["replay=1"],
    # Of a busy machine, which is late.
    "data derive": ["max_age_ms=1e6"],
    "method=bc": [*SMALL_BASE, "method.steps=20", "threads=1"],
    "method=residual_chunk": [*SMALL_RL, "method.steps=40", "method.warmup_steps=20", "log_every=20"],
    "eval": ["episodes=2", "num_envs=2"],
    "report": ["videos=false"],
    "deploy": ["episodes=1"],
}
"""Command or method → options that make it short."""


def blocks(page: str) -> list[Block]:
    """Those of a page."""
    found = _BLOCK.findall((PAGES / f"{page}.md").read_text(encoding="utf-8"))
    return [(language, info.strip(), body) for language, info, body in found]


def name_of(arguments: Sequence[str]) -> str:
    """The command, or for training its method."""
    words = [word for word in arguments if "=" not in word]
    methods = [word for word in arguments if word.startswith("method=")]
    return methods[0] if methods else " ".join(words)


def follow(
    page: list[Block],
    here: Path,
    *,
    codes: Sequence[int] = (0,),
    replace: Callable[[str], str] = str,
    few: Mapping[str, Sequence[str]] = FEW,
) -> list[str]:
    """Write the files of a page and run its commands, but for those that are marked; returns their names.

    Args:
        page: its blocks.
        here: the current folder.
        codes: exit codes that are right.
        replace: changes a command.
        few: options that make commands short, by their names.
    """
    done = []
    for language, info, body in page:
        if info.startswith("file="):
            path = here / info.removeprefix("file=")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body, encoding="utf-8")
        elif not info:
            assert language == "sh"
            program, *arguments = shlex.split(replace(body))
            if program == "python":
                done.append(arguments[0])
                runpy.run_path(str(here / arguments[0]))
                continue
            assert program == "robot-rl"
            done.append(name_of(arguments))
            try:
                code = main([*arguments, *few.get(done[-1], ())])
            except SystemExit as ended:  # as `doctor` ends after a check that failed
                code = int(ended.code or 0)
            assert code in codes, done
    return done


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder; what a tutorial registers is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    EXPERTS.pop("Hover", None)
    sys.modules.pop("my_tasks", None)


@pytest.mark.full
def test_collect_from_an_expert(here: Path) -> None:
    page = blocks("collect")
    done = follow(page[: [info for _, info, _ in page].index("keyboard")], here)
    assert done == ["collect", "data info", "data validate", "data view"]
    assert (here / "data" / "lift.html").is_file()


@pytest.mark.full
def test_collect_by_hand(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = blocks("collect")
    at = [info for _, info, _ in page].index("keyboard")
    program, *arguments = shlex.split(page[at][2])
    assert program == "robot-rl"
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    terminal = Terminal(*arguments, cwd=here)
    try:
        terminal.await_text("ecorded")
        for key, shown in (("a", "ready"), ("b", "RECORDING"), ("c", "clutch engaged")):
            terminal.press_for(key, shown)
        for _ in range(20):
            terminal.press("i")
            time.sleep(0.05)
        terminal.press_for("s", "committed in")
        assert terminal.quit() == 0
    finally:
        terminal.close()
    assert follow(page[at + 1 :], here) == ["data derive", "data info"]
    assert re.search(r"^episodes +1, ", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.full
def test_train(here: Path, demonstrations: Path) -> None:
    shutil.copytree(demonstrations, here / "data" / "lift.zarr")
    done = follow(blocks("train"), here)
    trained = ["method=bc", "eval", "method=residual_chunk", "eval", "report", "use_policy.py"]
    assert done == trained
    run = here / "runs" / "lift_residual_chunk_s0"
    summary = json.loads((run / "eval" / "summary.json").read_text())
    assert {"base", "tuned"} <= set(summary["policies"])
    assert (run / "report.html").is_file()


@pytest.mark.full
def test_deploy(here: Path, base_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = short(base_run, here / "runs" / "lift_residual_chunk_s0")
    page = blocks("deploy")
    (server,) = (body for _, info, body in page if info == "server")
    program, command, *arguments = shlex.split(server)
    assert (program, command) == ("robot-rl", "robot")
    (address,) = (word for word in arguments if word.startswith("address="))
    arguments.remove(address)
    told = address.removeprefix("address=")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (here / "r").mkdir()
    with serving(here / "r", *arguments) as (served, _):
        # On a busy machine `doctor` may find that the server is late.
        done = follow(page, here, codes=(0, 1), replace=lambda body: body.replace(told, served))
    assert done == ["doctor", "deploy"]
    assert len(json.loads((policy / "deploy.json").read_text())["episodes"]) == 1


@pytest.mark.full
def test_instructions(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = blocks("instructions")
    scene = ["task.image_size=[24,24]", "task.horizon=8"]
    few = {
        "collect": ["episodes=6", *scene],
        "method=bc": [
            *SMALL_VLA,
            "method.batch_size=4",
            "method.steps=2",
            "method.successes_only=false",
            "threads=1",
            *scene,
        ],
        "method=residual_chunk": [*FEW["method=residual_chunk"], "method.demo_ratio=0", *scene],
        "eval": FEW["eval"],
    }
    done = follow(page, here, few=few)
    data = ["collect", "collect", "data merge", "data info"]
    assert done == [*data, "method=bc", "eval", "method=residual_chunk", "eval"]
    assert "stack the red cube on the green cube" in capsys.readouterr().out
    (server,) = (body for _, info, body in page if info == "server")
    (client,) = (body for _, info, body in page if info == "client")
    program, *arguments = shlex.split(server.replace(":8000", ":0"))
    assert program == "robot-rl"
    process = subprocess.Popen(
        [sys.executable, "-m", "robot_rl", *arguments], cwd=here, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout
        port = process.stdout.readline().rstrip().rpartition(":")[2]
        python = make_openpi_client(here)
        program, *arguments = shlex.split(client.replace("8000", port))
        asked = subprocess.run([python, *arguments], cwd=here, check=True, capture_output=True, text=True)
    finally:
        process.kill()
        process.wait()
    actions = np.array(re.findall(r"-?\d+\.\d*(?:e-?\d+)?", asked.stdout), float)
    assert actions.size
    assert (abs(actions) <= 1).all()


@pytest.mark.full
def test_own_method(here: Path, base_run: Path, demonstrations: Path) -> None:
    shutil.copytree(demonstrations, here / "data" / "lift.zarr")
    shutil.copytree(base_run, here / "runs" / "lift_bc_s0")
    ((_, _, module), *commands) = blocks("own_method")
    (here / "my_method.py").write_text(module, encoding="utf-8")
    few = {"train": FEW["method=residual_chunk"], "eval": FEW["eval"]}

    def said(body: str, *more: str, code: int = 0) -> str:
        """In another process: this one has its methods already."""
        program, command, *arguments = shlex.split(body)
        assert program == "robot-rl"
        called = [sys.executable, "-m", "robot_rl", command, *arguments, *few[command], *more]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(called, cwd=here, capture_output=True, text=True, env=environ)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    train, evaluate = (body for _, _, body in commands)
    assert "method.lowest=6: choose 1 to method.num_critics=" in said(train, "method.lowest=6", code=2)
    said(train)
    assert "lowest: 3" in (here / "runs" / "lift_cautious_s0" / "config.yaml").read_text()
    assert "tuned" in said(evaluate)


def test_own_task(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = follow(blocks("own_task"), here)
    methods = ["method=bc", "method=residual_chunk"]
    assert done == ["states", "collect", "states", *methods, "eval"]
    said = capsys.readouterr().out
    assert "data/hover.zarr: 2 episodes, 2 of the 2 new ones succeeded" in said
    assert "hover: 2 episodes from hover.safetensors" in said
    assert (here / "runs" / "hover_residual_chunk_s0" / "eval" / "summary.json").is_file()
    assert (here / "sim_assets" / "initial_states" / "Wipe.safetensors").is_file()
    env = make_robosuite_env("hover")
    assert "hand_to_goal" in env.task.state_keys
    observed = env.reset(seed=1)[0]["state"][-3:]
    np.testing.assert_allclose(observed, env.raw["hand_to_goal"], rtol=1e-6)
    env.sim.stayed = 4
    state = env.get_state()
    env.reset(seed=0)
    assert env.sim.stayed == 0
    env.set_state(state)
    assert env.sim.stayed == 4
    env.close()
