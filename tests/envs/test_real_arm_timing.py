"""Aligned observations and actions at their target times, in stepped time: exact, or reported."""

import datetime
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from robot_rl.envs.action import ActionDim, spec_to_list
from robot_rl.envs.observation import ObservationSpec
from robot_rl.envs.real_arm import RealArmEnv
from robot_rl.hardware.cameras.reader import FrameReader
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.clock import MS
from robot_rl.hardware.connection import RobotError
from robot_rl.hardware.protocol.arrays import Frame, encode_image
from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.messages import State
from robot_rl.hardware.protocol.sockets import ClientSockets
from robot_rl.hardware.spec import Delay, Latency
from tests.envs.stepped_robot import SteppedRobot

STEP = 50
"""ms"""
IMAGE = (4, 6)
ACTIONS = tuple(ActionDim(f"eef_{axis}", "delta", "m", 0.01, "base") for axis in "xyz")


def delay(ms: float) -> Delay:
    return Delay(ms=ms, spread_ms=1.0, measured=datetime.date(2026, 11, 21))


def environment(*cameras: str) -> dict[str, Any]:
    observed = ObservationSpec(("robot0_joint_pos", "robot0_eef_pos"), (4, 3), cameras, IMAGE)
    return {
        "task": "reach",
        "control_freq": 1000 / STEP,
        "horizon": 1000,
        "observation_spec": observed.as_dict(),
        "action_spec": spec_to_list(ACTIONS),
    }


class Asking(RobotClient):
    """Asks for the newest state. The published one it could miss, and here no other comes until it has it.

    ZMQ loses what comes to a conflated socket at the very moment at which the one before is taken.
    """

    def state(self, max_age: float = 0.1) -> State:
        return self.sample()


class Waiting(FrameReader):
    """Waits for the images that were sent: which of them is the newest must not depend on the sockets."""

    def __init__(self, robot: SteppedRobot, sockets: ClientSockets, names: Sequence[str]) -> None:
        super().__init__(sockets, names, 1000, robot.clock)
        self._sent = robot.images_sent

    def captured(self, name: str, since: int = 0, timeout: float = 0.0) -> int:
        until = time.monotonic() + 60
        while name in self._sent and not self._has(name, self._sent[name]):
            assert time.monotonic() < until, f"an image of {name} was lost"
            time.sleep(0.001)
        return super().captured(name, since, timeout)

    def _has(self, name: str, t_capture: int) -> bool:
        return any(frame.t_capture >= t_capture for frame, _ in self._listeners[name].kept()[1])


@contextmanager
def env_of(robot: SteppedRobot, cameras: Sequence[str] = (), **options: Any) -> Iterator[RealArmEnv]:
    with (
        Asking(robot.address, "env", "policy", clock=robot.clock, timeout=5) as client,
        zmq.Context() as context,
        Waiting(robot, ClientSockets(context, parse(robot.address)), cameras) as frames,
    ):
        # Only the state of this very moment is observed: which one it is must not depend on the sockets.
        given = {"prepare": lambda _: None, "max_age_ms": 0.5, "frames": frames, "clock": robot.clock}
        yield RealArmEnv(client, environment(*cameras), **{**given, **options})


# ---- actions at their time --------------------------------------------------------------------------------

MOVES = np.random.default_rng(0).uniform(-1, 1, (30, 3)).astype(np.float32)
JITTER = np.random.default_rng(1).uniform(0, 40, 30)


def moved(
    folder: Path, thinking: Sequence[float], latency: Latency | None = None, **options: Any
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Where the arm was at every tick of an episode whose steps took so many ms to decide; and the infos."""
    with SteppedRobot(folder, latency) as robot, env_of(robot, **options) as env:
        env.reset()
        begun = len(robot.seen)
        infos = []
        for move, ms in zip(MOVES, thinking, strict=True):
            robot.wait(ms)
            infos.append(env.step(move)[4])
        assert all(not info["refused"] for info in infos), infos
        return np.array([state.q for state in robot.seen[begun:]]), infos


def test_within_the_lookahead_the_arm_moves_the_same_however_long_each_step_took(tmp_path: Path) -> None:
    prompt, _ = moved(tmp_path / "a", np.zeros(30), lookahead_ms=45)
    late, infos = moved(tmp_path / "b", JITTER, lookahead_ms=45)
    # Before the first action is due, in the fifth tick, the last bit may show when the arm was told to stay.
    assert np.abs(prompt[:4] - late[:4]).max() < 1e-12
    assert np.array_equal(prompt[4:], late[4:])
    assert np.ptp(prompt, axis=0).max() > 0.02
    assert {info["acted_late_ms"] for info in infos} == {0.0}


def test_without_a_lookahead_each_late_step_shows_in_the_motion(tmp_path: Path) -> None:
    prompt, infos = moved(tmp_path / "a", np.zeros(30))
    late, _ = moved(tmp_path / "b", JITTER)
    assert prompt.shape == late.shape
    assert np.abs(prompt - late).max() > 1e-3
    assert "acted_late_ms" not in infos[0]


def test_a_step_later_than_its_lookahead_is_acted_on_at_once_and_told(tmp_path: Path) -> None:
    _, infos = moved(tmp_path / "a", JITTER, lookahead_ms=20)
    told = np.array([info["acted_late_ms"] for info in infos])
    assert told == pytest.approx(np.maximum(0.0, JITTER - 20), abs=1e-3)
    assert (told > 0).any()
    assert (told == 0).any()


def test_an_action_takes_effect_its_lookahead_after_its_step_was_due(tmp_path: Path) -> None:
    latency = Latency(action=delay(62.0))
    with SteppedRobot(tmp_path / "r", latency) as robot, env_of(robot, lookahead_ms=100) as env:
        env.reset()
        due = robot.clock.now()
        robot.wait(13)
        env.step(MOVES[0])
        env.step(MOVES[1])
        acted = {state.goal_seq: state.tm for state in reversed(robot.seen) if state.goal_seq}
        _, *actions = sorted(acted.values())  # first of all, the arm is told to stay
        # 62 ms before it takes effect the server acts, at the next of its ticks of 10 ms.
        assert actions == [due + 40 * MS, due + 90 * MS]


def test_a_lookahead_that_the_arm_cannot_meet_is_refused(tmp_path: Path) -> None:
    with (
        SteppedRobot(tmp_path / "r", Latency(action=delay(62.0))) as robot,
        pytest.raises(ValueError, match="takes 62 ms to move"),
        env_of(robot, lookahead_ms=50),
    ):
        pass


def test_a_lookahead_beyond_what_a_server_accepts_is_refused(tmp_path: Path) -> None:
    with (
        SteppedRobot(tmp_path / "r") as robot,
        pytest.raises(ValueError, match="a robot plans 2000 ms ahead at most"),
        env_of(robot, lookahead_ms=2001),
    ):
        pass


def test_without_a_lookahead_a_latency_changes_nothing(tmp_path: Path) -> None:
    with_latency, _ = moved(tmp_path / "a", JITTER, Latency(action=delay(62.0)))
    without, _ = moved(tmp_path / "b", JITTER)
    assert np.array_equal(with_latency, without)


def test_what_a_limit_leaves_of_a_timed_action_is_what_was_applied(tmp_path: Path) -> None:
    lid = (0.7, 0.6, 0.13)
    with (
        SteppedRobot(tmp_path / "r", workspace_upper=lid) as robot,
        env_of(robot, lookahead_ms=20) as env,
    ):
        env.reset()
        up = np.array([0.3, 0.0, 1.0], np.float32)
        for _ in range(200):
            *_, info = env.step(up)
            if info["clipped"]:
                break
        assert info["clipped"] == ("workspace_upper",)
        assert info["applied_action"][0] == pytest.approx(0.3, abs=1e-4)
        assert 0.0 <= info["applied_action"][2] < 1.0


# ---- observations of one moment ---------------------------------------------------------------------------


class Camera:
    """Takes an image every third tick; its pixels are its number, its time stamp is `late` ms after it."""

    def __init__(self, robot: SteppedRobot, name: str, late: float = 0, phase: int = 0) -> None:
        self.robot, self.name, self.late, self._phase = robot, name, late, phase
        self.taken: dict[int, int] = {}
        """When each image was taken."""
        self.lost = False
        self._ticks = 0
        robot.shows.append(self.look)

    def look(self, _: State) -> None:
        self._ticks += 1
        if self._ticks % 3 != self._phase:
            return
        number = len(self.taken) + 1
        self.taken[number] = self.robot.clock.now()
        if not self.lost:
            self.robot.images.send(self.message(number))
            self.robot.images_sent[self.name] = self.taken[number] + round(self.late * MS)

    def message(self, number: int) -> bytes:
        t = self.robot.clock.now()
        frame = Frame(
            camera=self.name,
            number=number,
            t_capture=t + round(self.late * MS),
            t_capture_raw=0,
            t_recv=t,
            height=IMAGE[0],
            width=IMAGE[1],
            encoding="rgb8",
            dropped=0,
        )
        return encode_image(frame, bytes([number]) * (IMAGE[0] * IMAGE[1] * 3))

    def shown(self, obs: dict[str, np.ndarray]) -> int:
        """When what is observed was taken."""
        return self.taken[int(obs[f"images.{self.name}"][0, 0, 0])]


def joints_at(robot: SteppedRobot, t: int) -> np.ndarray:
    times = [state.t_sample for state in robot.seen]
    return np.array([np.interp(t, times, [state.q[i] for state in robot.seen]) for i in range(4)])


@pytest.mark.parametrize("late", [{}, {"front": 40.0}, {"front": -20.0, "wrist": 15.0}], ids=str)
def test_images_and_state_are_of_one_moment_however_late_their_stamps_are(
    late: dict[str, float], tmp_path: Path
) -> None:
    latency = Latency(cameras={camera: delay(ms) for camera, ms in late.items()})
    with SteppedRobot(tmp_path / "r", latency) as robot:
        wrist = Camera(robot, "wrist", late.get("wrist", 0))
        front = Camera(robot, "front", late.get("front", 0), phase=1)
        with env_of(robot, ("wrist", "front")) as env:
            with robot.running():
                env.reset()
            moving = 0.0
            for move in MOVES[:12]:
                obs, *_, info = env.step(move)
                shown = wrist.shown(obs), front.shown(obs)
                t = robot.clock.now() - round(info["ages_ms"]["state"] * MS)
                assert t in shown
                assert obs["state"][:4] == pytest.approx(joints_at(robot, t), abs=1e-6)
                assert info["aligned_ms"] == abs(shown[0] - shown[1]) / MS in (10.0, 20.0)
                moving = max(
                    moving, float(np.abs(joints_at(robot, shown[0]) - joints_at(robot, shown[1])).max())
                )
            assert moving > 1e-3


def test_a_state_between_two_ticks_is_interpolated(tmp_path: Path) -> None:
    latency = Latency(cameras={"wrist": delay(3.0)})
    with SteppedRobot(tmp_path / "r", latency) as robot:
        # Stamped as it is taken: so it is believed to be of 3 ms earlier.
        wrist = Camera(robot, "wrist")
        with env_of(robot, ("wrist",)) as env:
            with robot.running():
                env.reset()
            for move in MOVES[:5]:
                obs, *_, info = env.step(move)
                t = wrist.shown(obs) - 3 * MS
                assert obs["state"][:4] == pytest.approx(joints_at(robot, t), abs=1e-6)
                assert info["aligned_ms"] == 0.0


def test_an_episode_begins_with_images_from_after_its_beginning(tmp_path: Path) -> None:
    with SteppedRobot(tmp_path / "r") as robot:
        cameras = [Camera(robot, "wrist"), Camera(robot, "front", phase=1)]
        begun: list[int] = []
        options = {"prepare": lambda _: begun.append(robot.clock.now())}
        with env_of(robot, ("wrist", "front"), **options) as env, robot.running():
            for _ in range(3):
                obs, _ = env.reset()
                assert all(camera.shown(obs) >= begun[-1] for camera in cameras)


def steps(env: RealArmEnv) -> None:
    for move in MOVES:
        env.step(move)


def test_a_camera_that_is_too_far_from_the_others_is_named_and_not_used(tmp_path: Path) -> None:
    with SteppedRobot(tmp_path / "r") as robot:
        wrist, front = Camera(robot, "wrist"), Camera(robot, "front")
        with env_of(robot, ("wrist", "front"), max_spread_ms=25) as env:
            with robot.running():
                env.reset()
            env.step(MOVES[0])
            front.lost = True
            with pytest.raises(RobotError, match=r"camera wrist: its nearest image is \d+ ms from"):
                steps(env)
            assert wrist.taken


def test_a_camera_that_shows_nothing_new_is_named_and_not_used(tmp_path: Path) -> None:
    with SteppedRobot(tmp_path / "r") as robot:
        front = Camera(robot, "front")
        with env_of(robot, ("front",)) as env:
            with robot.running():
                env.reset()
            front.lost = True
            with pytest.raises(RobotError, match="camera front: the newest image is"):
                steps(env)


def test_without_cameras_the_newest_state_is_observed(tmp_path: Path) -> None:
    with SteppedRobot(tmp_path / "r") as robot, env_of(robot) as env:
        env.reset()
        for move in MOVES[:5]:
            obs, *_, info = env.step(move)
            assert np.array_equal(obs["state"][:4], np.array(robot.seen[-1].q, np.float32))
            assert "aligned_ms" not in info
            assert info["ages_ms"] == {"state": 0.0}


# ---- who is behind it -------------------------------------------------------------------------------------


def test_the_arm_is_a_persons_from_the_step_in_which_they_take_over(tmp_path: Path) -> None:
    with SteppedRobot(tmp_path) as robot, env_of(robot) as env:
        env.reset()
        told = []
        for commander in ("policy", "human", "human", "policy"):
            env.commander = commander  # type: ignore[assignment]
            info = env.step(MOVES[0])[4]
            assert not info["refused"], info
            told.append(robot.seen[-1].mode.value)
        assert told == ["policy", "human", "human", "policy"]
        env.commander = "human"
        env.reset()
        assert env.commander == "policy"
