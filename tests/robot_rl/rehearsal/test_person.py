"""What the scripted person holds on the page, and how it helps an arm that does not get home."""

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from robot_rl.cli.compose import compose
from robot_rl.cli.main import load_command
from robot_rl.envs.task import TaskConfig
from robot_rl.factory import make_robosuite_env
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.connection import NotAtHome
from robot_rl.hardware.teleop.operator_display import ProgramStatus
from robot_rl.hardware.teleop.web.messages import Arm, View
from robot_rl.rehearsal import person
from robot_rl.rehearsal.event_log import EventLog
from robot_rl.rehearsal.person import Duty, Person, PersonConfig, _Attending, _PageControls
from robot_rl.rehearsal.scene import Scene
from robot_rl.rehearsal.workplace import ServedRobot, Terminal
from tests.conftest import SMALL_BASE, RunCommand


class RecordingPage:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.grippers: list[float | None] = []
        self.pressed: list[str] = []

    def press(self, mark: str) -> None:
        self.pressed.append(mark)

    def move(self, motion: tuple[float, ...] = (), gripper: float | None = None, *, on: bool) -> None:
        if on:
            self.grippers.append(gripper)


def view(mode: str) -> View:
    empty: Any = None
    return View(
        robot="",
        trouble="",
        arm=Arm(mode=mode),
        program=empty,
        control="you",
        controller="",
        browsers=1,
        seen=0,
        sample_ms=None,
        round_trip_ms=None,
    )


def test_an_opening_that_a_takeover_begins_with_is_sent_once_the_person_drives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(person, "_RELEASED_S", -1.0)
    page: Any = RecordingPage()
    controls = _PageControls(page)
    controls.act(np.array([0, 0, 1, 0, 0, 0, -1.0]))
    controls.send(view("policy"))
    controls.send(view("human"))
    # With the press, the opening is the one that the gripper keeps.
    assert page.grippers == [None, 1.0]


@pytest.mark.parametrize("lifted", [False, True])
def test_a_success_that_the_person_has_not_seen_is_taken_back(
    monkeypatch: pytest.MonkeyPatch, *, lifted: bool
) -> None:
    monkeypatch.setattr(person, "_JUDGED_S", 0.0)
    env, noted = make_robosuite_env("lift"), list[int | None]()
    env.reset(seed=0)
    page: Any = RecordingPage()
    scene: Any = SimpleNamespace(sim=env.sim, outside=False, at_home=True)
    someone: Any = SimpleNamespace(
        task=env.task, config=PersonConfig("intervene"), seed=0, note_revoked=noted.append
    )
    session = _Attending(someone, scene, _PageControls(page))
    running = ProgramStatus(episode=3, running=True)
    ended = ProgramStatus(episode=4, marks=("failure",), outcomes=("success",))
    session.step(msgspec.structs.replace(view("policy"), program=running))
    if lifted:
        cube = env.sim.sim.data.get_joint_qpos("cube_joint0")
        env.sim.sim.data.set_joint_qpos("cube_joint0", cube + np.array([0, 0, 0.05, 0, 0, 0, 0]))
        env.sim.sim.forward()
        session.step(msgspec.structs.replace(view("policy"), program=running))
    session.step(msgspec.structs.replace(view("script"), program=ended))
    assert (page.pressed, noted) == (([], []) if lifted else (["failure"], [4]))
    env.close()


def test_a_session_goes_on_with_its_scenes_and_another_with_the_same_duty_begins_with_them(
    tmp_path: Path,
) -> None:
    def scenes(session: str, *, duty: Duty = "watch", seed: int = 0, count: int = 2) -> list[int]:
        placed = list[int]()
        scene: Any = SimpleNamespace(place=lambda seed: placed.append(seed) or "")
        task: Any = None
        someone = Person(
            task, tmp_path, str, PersonConfig(duty), EventLog(tmp_path / "events.jsonl"), seed, session
        )
        assert all(someone.place_objects(scene) for _ in range(count))
        return placed

    both = scenes("base", count=4)
    assert len(set(both)) == 4
    assert scenes("tuned") + scenes("tuned") == both
    assert set(scenes("trials", duty="label")).isdisjoint(both)
    assert set(scenes("other", seed=1)).isdisjoint(both)


def stretch(address: str) -> None:
    """Leave the arm in a posture from which it does not find the way home."""
    with RobotClient(address, "test", role="operator") as robot:
        robot.arm()
        with robot.lease("script"):
            for sideways in (0.0, 0.004, -0.004, 0.008, -0.008, 0.002):
                end = time.monotonic() + 8
                while time.monotonic() < end:
                    robot.command("cartesian_delta", [0.012, sideways, 0.006, 0, 0, 0])
                    time.sleep(0.05)
                try:
                    robot.home(timeout=8.0)
                except NotAtHome:
                    break
            else:
                pytest.fail("the arm found its way home from everywhere")
        robot.disarm()


@pytest.mark.full
def test_an_arm_that_does_not_find_the_way_home_is_disarmed_guided_and_armed(
    tmp_path: Path, robot_rl: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else the person guides it before the program has tried.
    monkeypatch.setattr(Scene, "outside", False)
    task = ["task=lift_image", "task.image_size=[24,24]", "task.horizon=10"]
    data, base = tmp_path / "data.zarr", tmp_path / "base"
    robot_rl("collect", *task, "task.horizon=100", f"data={data}", "episodes=1", "noise=0")
    small = (*SMALL_BASE, "method.steps=2", "threads=1", f"runs_dir={tmp_path}", "name=base")
    robot_rl("train", *task, "method=bc", f"data={data}", "method.successes_only=false", *small)
    address, events = f"ipc://{tmp_path}/robot", EventLog(tmp_path / "events.jsonl")
    served = [*task, f"surroundings={tmp_path / 'room'}", "lease_ms=1000"]
    terminal = Terminal(tmp_path / "logs", events, print)
    robot = ServedRobot(served, address, tmp_path / "server.log", events)
    try:
        stretch(address)
        seen: TaskConfig = compose(load_command("robot"), task).task
        room, find_page = tmp_path / "room", terminal.find_page
        with Person(seen, room, find_page, PersonConfig("watch"), events, seed=0, session="base") as someone:
            deploy = ["deploy", f"policy={base}", f"robot={address}", "episodes=1", "reset=operator"]
            page = ["operator=web", "operator_device.port=0", f"out={tmp_path / 'deploy.json'}"]
            terminal.run([*deploy, *page])
        assert someone.error is None
    finally:
        robot.close()
    assert [line["refused"] for line in events.lines("guided home")] == [""]
    (episode,) = json.loads((tmp_path / "deploy.json").read_text())["episodes"]
    assert episode["steps"] > 0
