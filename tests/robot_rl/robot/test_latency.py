"""`robot-rl robot latency`: nothing moves before its operator has agreed and all else is known to work."""

import io
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from robot_rl.errors import UserError
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.protocol.messages import Mode
from robot_rl.hardware.robot_file import load_robot
from tests.hardware.processes import Server

ROBOTS = Path(__file__).resolve().parents[3] / "configs" / "robot"
RunCommand = Callable[..., None]


@pytest.fixture
def robot(server: Server) -> Iterator[RobotClient]:
    with server.client("looker", "operator") as robot:
        yield robot


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "my.yaml"
    shutil.copyfile(ROBOTS / "sim_panda.yaml", path)
    return path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["joint=joint9"], "joint9: sim_panda has joint1"),
        (["cameras=[front]"], "has no 'front'; it has none"),
        (["seconds=1"], "choose 6 to 60"),
        (["write=nowhere.yaml"], "nowhere.yaml: no such file"),
        (
            [f"write={ROBOTS / 'franka.yaml'}"],
            "is the file of franka, and the robot at the address is sim_panda",
        ),
        (["keys=nowhere"], "nowhere"),
    ],
)
def test_a_mistake_is_said_before_anything_moves(
    arguments: list[str], says: str, server: Server, robot: RobotClient, robot_rl: RunCommand
) -> None:
    begun = robot.events()[-1].seq
    with pytest.raises(UserError, match=says):
        robot_rl("robot latency", f"address={server.address}", "go=true", *arguments)
    assert not any(event.what == "mode" for event in robot.events(begun))


def test_a_file_that_could_not_be_written_is_found_before_anything_moves(
    server: Server, robot: RobotClient, own: Path, robot_rl: RunCommand
) -> None:
    with own.open("a") as file:
        file.write("\nlatency: # of the old arm\n  action: {ms: 1, spread_ms: 1, measured: 2026-01-01}\n")
    before = own.read_text()
    with pytest.raises(UserError, match="comments, which would be lost"):
        robot_rl("robot latency", f"address={server.address}", "go=true", f"write={own}")
    assert own.read_text() == before
    assert robot.sample().mode is Mode.IDLE


def test_without_consent_nothing_moves(
    server: Server,
    robot: RobotClient,
    robot_rl: RunCommand,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    with pytest.raises(UserError, match="only with the operator's consent: press Enter, or give go=true"):
        robot_rl("robot latency", f"address={server.address}")
    assert "will swing joint1 by 0.060 rad to either side" in capsys.readouterr().out
    assert robot.sample().mode is Mode.IDLE


def test_a_robot_in_fault_is_left_alone(server: Server, robot: RobotClient, robot_rl: RunCommand) -> None:
    robot.arm()
    robot.stop("a hand in the way")
    with pytest.raises(UserError, match="in mode fault: it must be idle or armed"):
        robot_rl("robot latency", f"address={server.address}", "go=true")
    robot.acknowledge("the hand is gone")


def test_without_a_robot_there_is_a_line(tmp_path: Path, robot_rl: RunCommand) -> None:
    with pytest.raises(UserError, match="no connection"):
        robot_rl("robot latency", f"address=ipc://{tmp_path / 'r'}", "go=true")


@pytest.mark.full
def test_what_was_measured_is_printed_and_written_and_the_arm_is_as_it_was(
    server: Server,
    robot: RobotClient,
    own: Path,
    robot_rl: RunCommand,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    q = robot.sample().q
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda text: asked.append(text) or "")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    text = own.read_text()
    robot_rl("robot latency", f"address={server.address}", f"write={own}", "seconds=6")
    assert asked == ["Enter begins: "]
    out = capsys.readouterr().out
    assert "server acts" in out
    assert f"written to {own}" in out
    latency = load_robot(own).latency
    assert latency.action is not None
    assert 50 < latency.action.ms < 250
    assert latency.state is not None
    assert own.read_text().startswith(text)
    assert robot.sample().mode is Mode.IDLE
    assert robot.sample().q == pytest.approx(q, abs=5e-3)


@pytest.mark.full
def test_what_was_refused_is_said_and_is_not_written(
    server: Server,
    own: Path,
    robot_rl: RunCommand,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("robot_rl.hardware.latency.correlation.MIN_CORRELATION", 1.1)
    text = own.read_text()
    with pytest.raises(SystemExit) as ended:
        robot_rl("robot latency", f"address={server.address}", f"write={own}", "go=true", "seconds=6")
    assert ended.value.code == 1
    told = capsys.readouterr()
    assert "action was not measured: the correlation is" in told.err
    assert "refused: the correlation is" in told.out
    latency = load_robot(own).latency
    assert latency.action is None
    assert latency.state is not None
    assert own.read_text().startswith(text)
