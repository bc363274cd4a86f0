"""The services of a workstation: systemd accepts them, and their commands are commands of this program."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from robot_rl.cli.compose import compose
from robot_rl.cli.main import load_command
from robot_rl.hardware.realtime import ARM

FOLDER = Path(__file__).resolve().parent.parent / "configs" / "workstation"
UNITS = sorted(FOLDER.glob("*.service"))
INSTALLED = "/opt/robot-rl/bin/robot-rl"


def arguments(unit: Path) -> list[str]:
    """What the unit gives to robot-rl, with the values of its environment."""
    text = unit.read_text()
    values = dict(re.findall(r"(\w+)=(\S+)", " ".join(re.findall(r"^Environment=(.*)$", text, re.MULTILINE))))
    (line,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    words = shlex.split(line)
    if words[0] == "/bin/sh":
        script = re.sub(r"\$\$(\w+)", lambda name: values.get(name[1], name[1]), words[2])
        words = shlex.split(script.removeprefix("exec "))
    assert words[0] == INSTALLED
    return words[1:]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_accepts_the_unit(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not here")
    for path in UNITS:
        # It also checks that the commands exist.
        (tmp_path / path.name).write_text(path.read_text().replace(INSTALLED, shutil.which("true") or ""))
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / unit.name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    about = [line for line in done.stderr.splitlines() if "robot-rl" in line]
    assert (done.returncode, about) == (0, []), done.stderr


def test_the_commands_of_the_units_are_commands_of_this_program() -> None:
    configs = {unit.stem: arguments(unit) for unit in UNITS}
    server = compose(load_command(configs["robot-rl-server"][0]), configs["robot-rl-server"][1:])
    deploy = compose(load_command(configs["robot-rl-deploy"][0]), configs["robot-rl-deploy"][1:])
    assert server.address == deploy.robot
    assert (deploy.policy, deploy.reset) == ("/etc/robot-rl/bundle", "home")
    assert deploy.out == "/var/lib/robot-rl/INVOCATION_ID.json"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_units_allow_the_priorities_that_the_program_takes(unit: Path) -> None:
    (limit,) = re.findall(r"^LimitRTPRIO=(\d+)$", unit.read_text(), re.MULTILINE)
    assert int(limit) >= ARM
