"""Tasks and robots of the user's own: files by path or in the current folder, and no file at all."""

from pathlib import Path

import pytest

from robot_rl.cli.compose import compose, load_group
from robot_rl.cli.help import print_help
from robot_rl.cli.main import load_command
from robot_rl.envs.task import TaskConfig
from robot_rl.errors import UserError
from robot_rl.robot.robots import robot_path

LIFT = "env: Lift\nhorizon: 50\nstate_keys: [cube_pos]\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a task of the user's own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs" / "task").mkdir(parents=True)
    (tmp_path / "configs" / "task" / "short_lift.yaml").write_text(LIFT, encoding="utf-8")
    return tmp_path


def test_a_task_is_named_by_its_path_or_in_the_current_folder(here: Path) -> None:
    command = load_command("collect")
    by_name = compose(command, ["task=short_lift", "task.horizon=60"])
    by_path = compose(command, ["task=configs/task/short_lift.yaml", "task.horizon=60"])
    assert by_name == by_path
    assert by_name.task == TaskConfig("short_lift", "Lift", horizon=60, state_keys=["cube_pos"])
    assert by_name.data == "data/short_lift.zarr"
    assert load_group("task", "short_lift", TaskConfig) == load_group(
        "task", str(here / "configs" / "task" / "short_lift.yaml"), TaskConfig
    )


def test_a_file_of_ones_own_comes_before_a_shipped_one(here: Path) -> None:
    (here / "configs" / "task" / "lift.yaml").write_text(LIFT, encoding="utf-8")
    assert compose(load_command("collect")).task.horizon == 50


def test_a_command_without_a_usual_task_takes_one_too(here: Path) -> None:
    assert compose(load_command("robot"), ["task=short_lift"]).task.horizon == 50
    assert compose(load_command("robot"), ["task.env=Lift"]).task == TaskConfig("Lift", "Lift")


def test_an_environment_alone_is_a_task() -> None:
    config = compose(load_command("collect"), ["task.env=Wipe", "task.horizon=30"])
    assert config.task == TaskConfig("Wipe", "Wipe", horizon=30)
    assert config.data == "data/Wipe.zarr"
    # With a file chosen, the key changes the file's.
    assert compose(load_command("collect"), ["task=lift", "task.env=Wipe"]).task.name == "lift"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("env: Lift\nhorizont: 3\n", "there is no key horizont; did you mean horizon"),
        ("env: Lift\nhorizon: soon\n", "horizon: Value 'soon'"),
        ("- Lift\n", "is a map of keys to values"),
        ("env: [\n", "short_lift.yaml: while parsing"),
        ("horizon: 3\n", "task.env is required"),
    ],
)
def test_a_file_that_is_no_task_is_refused_in_one_line(here: Path, text: str, said: str) -> None:
    (here / "configs" / "task" / "short_lift.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as error:
        compose(load_command("collect"), ["task=short_lift"])
    assert said in " ".join(str(error.value).split())


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("task=no/such.yaml", "task=no/such.yaml: there is no such file"),
        ("task=short_lifd", "did you mean task=short_lift"),
    ],
)
def test_a_task_that_is_not_there_is_refused(here: Path, argument: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        compose(load_command("collect"), [argument])


def test_help_names_the_tasks_of_the_current_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_help(load_command("collect"), ["task=short_lift"])
    text = " ".join(capsys.readouterr().out.split())
    assert "short_lift | square" in text
    assert "or a file's path" in text
    assert "task.horizon=50" in text


def test_a_robot_is_named_alike(here: Path) -> None:
    (here / "configs" / "robot").mkdir()
    path = here / "configs" / "robot" / "mine.yaml"
    path.write_text("", encoding="utf-8")
    assert robot_path("mine").resolve() == path
    assert robot_path("configs/robot/mine.yaml").resolve() == path
