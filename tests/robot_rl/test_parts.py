"""The parts of an installation: a robot's server without torch, a deployment without a simulator."""

import json
import os
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from robot_rl.cli.main import main
from robot_rl.data.raw.robot_environment import make_action_converter, robot_environment
from robot_rl.hardware.plugins import VARIABLE
from robot_rl.hardware.robot_file import load_robot
from robot_rl.policies.bases.base_policy import random_observations
from robot_rl.policies.bases.flow import FlowConfig, FlowPolicy
from robot_rl.policies.classifier import SuccessClassifier
from robot_rl.policies.nets.encoder import EncoderSpec
from robot_rl.policies.store import save_policy
from robot_rl.policy_client.config import RemoteConfig
from robot_rl.policy_client.remote_base import connect_base
from robot_rl.robot.robots import robot_path
from tests.hardware.processes import PATIENCE, ROOT
from tests.robot_rl import parts
from tests.robot_rl.parts import PART, PYPROJECT, group, hidden

HORIZON = 10
"""Steps of an episode."""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A policy for the simulated Panda, with a classifier that never sees success."""
    robot = load_robot(robot_path("sim_panda")).spec
    actions = make_action_converter(robot, {"cartesian_delta"}, 20.0, None).spec
    environment = {**robot_environment(robot, "reach", 20.0, {}, actions), "horizon": HORIZON}
    size = sum(environment["observation_spec"]["state_dims"])
    torch.manual_seed(0)
    config = FlowConfig(horizon=4, execute=2, width=16, depth=1, inference_steps=2)
    save_policy(FlowPolicy(config, size, len(actions)), tmp_path / "policy", {"environment": environment})
    judge = SuccessClassifier(EncoderSpec(size), 8)
    judge.threshold.fill_(1e9)
    judge.save(tmp_path / "judge", {"environment": environment})
    arguments = (f"policy={tmp_path / 'policy'}", f"success={tmp_path / 'judge'}")
    assert main(["export", *arguments, f"out={tmp_path / 'bundle'}"]) == 0
    return tmp_path / "bundle"


class Robot:
    """The server of a simulated arm in a process."""

    def __init__(self, command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        self._log = folder / "server.log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "robot", "driver=sim_panda", f"address=ipc://{folder / 'r'}", "lease_ms=1000"],
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        began = time.monotonic()
        while "session" not in self.output:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < began + PATIENCE, self.output
            time.sleep(0.05)
        self.seconds = time.monotonic() - began
        """Time until it answers."""

    @property
    def output(self) -> str:
        return self._log.read_text()

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE) == 0, self.output

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def deployed(
    server: Sequence[str], client: Sequence[str], bundle: Path, folder: Path, *environments: dict[str, str]
) -> float:
    """Run a server and a deployment with these commands; returns the time until the server answers."""
    with ExitStack() as ended:
        robot = Robot(server, folder, environments[0])
        ended.callback(robot.kill)
        out = folder / "deploy.json"
        options = (
            f"policy={bundle}",
            f"robot=ipc://{folder / 'r'}",
            f"out={out}",
            "reset=home",
            "episodes=1",
        )
        done = subprocess.run(
            [*client, "deploy", *options, "reset=home", "episodes=1"],
            cwd=folder,
            env=environments[-1],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr + robot.output
        record = json.loads(out.read_text())
        assert record["ended"] == "done"
        (episode,) = record["episodes"]
        # A busy machine may be too slow for an episode, which is then interrupted.
        assert episode["steps"] == HORIZON or episode["interrupted"]
        assert "torch" in record["versions"]
        robot.end()
    return robot.seconds


def served(command: Sequence[str], bundle: Path, folder: Path, environment: dict[str, str]) -> None:
    """Serve a bundle with this command, and ask it for a chunk."""
    serve = [*command, "serve", f"policy={bundle}", "address=ws://127.0.0.1:0"]
    with subprocess.Popen(serve, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            url = next(word for word in line.split() if word.startswith("ws://"))
            base = connect_base(RemoteConfig(url.rstrip(",.")), {})
            chunk = base.sample(random_observations(base, 1))
            assert chunk.actions.shape[-1] == base.spec.action_size
        finally:
            process.terminate()


def test_the_groups_are_parts_of_the_dependencies() -> None:
    """With the same versions: a part is what `pip install robot-rl` would install, with less."""
    whole = set(PYPROJECT["project"]["dependencies"])
    for part in ("robot", "deploy"):
        assert set(group(part)) <= whole
    assert "torch" in hidden("robot")
    assert {"torch", "robosuite", "numba"} - hidden("deploy") == {"torch"}
    assert "mujoco" in hidden("deploy")


@pytest.mark.full
def test_a_server_without_torch_and_a_deployment_without_a_simulator(bundle: Path, tmp_path: Path) -> None:
    """Their processes cannot import what the part lacks."""
    command = [sys.executable, "-m", "robot_rl"]
    inherited = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", VARIABLE: parts.__name__}
    both = ({**inherited, PART: part} for part in ("robot", "deploy"))
    deployed(command, command, bundle, tmp_path, *both)
    assert parts.NOTE in (tmp_path / "server.log").read_text()
    served(command, bundle, tmp_path, {**inherited, PART: "deploy"})


def test_a_robots_commands_need_no_torch_and_others_name_it_in_one_line() -> None:
    inherited = {**os.environ, "PYTHONPATH": str(ROOT), PART: "robot"}
    names = ("robot_keys", "robot_latency", "record", "doctor", "teleop")
    code = ["import sys", "import tests.robot_rl.parts", "from robot_rl.cli.main import main"]
    code += [f"import robot_rl.commands.{name}" for name in names]
    code += ["print('all are imported', flush=True)", "sys.exit(main(['train', 'method=bc']))"]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(code)],
        cwd=ROOT,
        env=inherited,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "all are imported\n", done.stderr
    assert done.returncode == 2
    assert "needs the package torch, which is not installed" in done.stderr.splitlines()[-1]


@pytest.mark.full
def test_a_server_and_a_deployment_run_in_clean_environments(bundle: Path, tmp_path: Path) -> None:
    """Environments with the packages of the part alone; prints their sizes and the times to start."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    lacking = {"robot": {"torch", "numba"}, "deploy": {"mujoco", "robosuite", "numba"}}
    commands = {}
    for part in ("robot", "deploy"):
        environment = tmp_path / part
        venv.create(environment, symlinks=True, with_pip=True)
        subprocess.run([ROOT / ".ci" / "packages.sh", environment, part], cwd=ROOT, env=clean, check=True)
        if part == "robot":
            # The models of the simulated arms.
            install = [environment / "bin" / "uv", "pip", "install", "--quiet", "--no-deps"]
            pins = ["-c", "constraints.txt", "--python", environment / "bin" / "python"]
            subprocess.run([*install, *pins, "robosuite"], cwd=ROOT, env=clean, check=True)
        commands[part] = [str(environment / "bin" / "robot-rl")]
        size = sum(path.lstat().st_size for path in environment.rglob("*") if path.is_file()) / 1e6
        modules = {path.name for path in environment.glob("lib/python*/site-packages/*")}
        assert not modules & lacking[part]
        began = time.monotonic()
        subprocess.run(
            [*commands[part], part, "--help"], check=True, env=clean, cwd=tmp_path, stdout=subprocess.DEVNULL
        )
        print(f"{part}: {size:.0f} MB; robot-rl {part} --help: {time.monotonic() - began:.2f} s")
    seconds = deployed(commands["robot"], commands["deploy"], bundle, tmp_path, clean)
    print(f"the server answered after {seconds:.1f} s")
    served(commands["deploy"], bundle, tmp_path, clean)
