"""A dataset says of each step what the devices said at that moment, and what was asked and followed."""

import hashlib
import itertools
import shutil
from contextlib import ExitStack
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from robot_rl.cli.compose import load_group
from robot_rl.commands import data_derive
from robot_rl.data.dataset import Dataset, make_windows
from robot_rl.data.episode_notes import notes_of
from robot_rl.data.frames import write_frames
from robot_rl.data.raw import timeline
from robot_rl.data.raw.derive import DeriveConfig, DeriveResult, derive
from robot_rl.data.validation import find_problems
from robot_rl.envs.task import TaskConfig
from robot_rl.hardware.core import rotation
from robot_rl.hardware.protocol.codec import ProtocolError
from robot_rl.hardware.protocol.messages import Code, Mode
from robot_rl.hardware.recording.log import read_log, record_header
from robot_rl.hardware.recording.raw import RawDataset
from robot_rl.hardware.spec import CameraSpec, Delay, Latency
from tests.conftest import RunCommand
from tests.robot_rl.data.recorded import (
    BEGUN,
    ROBOT,
    SECOND,
    Motion,
    joints,
    number_in,
    opening,
    position,
    quaternion,
    record,
)

RATE = 20.0


def made(
    tmp_path: Path, *motions: Motion, name: str = "x.zarr", **options: object
) -> tuple[Dataset, DeriveResult]:
    root = tmp_path / "x.raw"
    if not root.exists():
        record(root, *motions)
    derived = derive(RawDataset(root), tmp_path / name, DeriveConfig(**{"rate": RATE, **options}))  # type: ignore[arg-type]
    return Dataset(tmp_path / name), derived


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, DeriveResult]:
    """Dataset of one usual recording, to be read only."""
    return made(tmp_path_factory.mktemp("plain"), Motion())


def seconds(dataset: Dataset) -> np.ndarray:
    """Of each step from the recording's beginning."""
    return (dataset["time"] - BEGUN) / SECOND


def test_steps_are_at_a_fixed_rate_and_states_are_those_of_their_moment(
    plain: tuple[Dataset, DeriveResult],
) -> None:
    dataset, derived = plain
    t = seconds(dataset)
    np.testing.assert_allclose(np.diff(t), 1 / RATE, atol=2e-9)
    assert derived.episodes == dataset.num_episodes == 1
    assert 36 <= dataset.num_steps == derived.steps <= 40
    # Linear in time, so interpolation is exact; the newest state alone would be up to 5 ms off.
    np.testing.assert_allclose(dataset["robot0_joint_pos"], [joints(s) for s in t], atol=1e-6)
    np.testing.assert_allclose(dataset["robot0_eef_pos"], [position(s) for s in t], atol=1e-6)
    np.testing.assert_allclose(dataset["robot0_eef_quat"], [quaternion(s) for s in t], atol=1e-6)
    # What is not the arm's own is the newest until then.
    late = t - dataset["cube"][:, 0]
    assert (late >= -1e-6).all()
    assert (late < 0.015).all()
    np.testing.assert_allclose(late * 1e3, dataset["age_ms.state"], atol=1e-3)
    np.testing.assert_allclose(dataset["age_ms.gripper"], dataset["age_ms.state"] + 4, atol=1e-3)
    fingers = dataset["robot0_gripper_qpos"]
    np.testing.assert_allclose(fingers[:, 0], [opening(s) * 0.04 for s in t - late], atol=1e-6)
    np.testing.assert_allclose(fingers[:, 1], -fingers[:, 0])


def test_an_image_is_the_newest_that_was_taken_until_then(tmp_path: Path) -> None:
    delay = Delay(ms=50.0, spread_ms=1.0, measured=date(2025, 1, 1))
    dataset, _ = made(tmp_path, Motion(latency=Latency(cameras={"wrist": delay})))
    t = seconds(dataset)
    for camera, late in (("front", 0.0), ("wrist", 0.05)):
        images = dataset[f"images.{camera}"]
        assert images.dtype == np.uint8
        assert images.shape[1:] == (24, 32, 3)
        shown = np.array([number_in(image) for image in images]) / 30 - late
        ages = t - shown
        assert (ages > -1e-6).all()
        assert (ages < 1 / 30 + 1e-6).all()
        np.testing.assert_allclose(ages * 1e3, dataset[f"age_ms.{camera}"], atol=1e-3)


def test_an_action_is_the_way_from_the_arm_to_what_was_asked_until_the_next_step(tmp_path: Path) -> None:
    def nearer(data):  # type: ignore[no-untyped-def]
        return (*data[:2], min(data[2], 0.24), *data[3:])

    dataset, _ = made(tmp_path, Motion(applied=nearer))
    spec = dataset.action_spec
    assert [dim.name for dim in spec] == ["x", "y", "z", "rx", "ry", "rz", "gripper"]
    scale = np.array([dim.scale for dim in spec])
    # lead_linear + linear_velocity / rate, lead_angular + angular_velocity / rate.
    np.testing.assert_allclose(scale, [0.045] * 3 + [0.15] * 3 + [1])
    t = seconds(dataset)
    asked, applied = dataset["action"] * scale, dataset["applied_action"] * scale
    commanded = np.floor((t + 1 / RATE) * RATE + 1e-6) / RATE
    for k, (now, newest) in enumerate(zip(t, commanded, strict=True)):
        way = np.subtract(position(newest + 0.1), position(now))
        turn = rotation.between(quaternion(now), quaternion(newest + 0.1))
        np.testing.assert_allclose(asked[k, :6], [*way, *turn], atol=1e-5)
    np.testing.assert_allclose(applied[:, [0, 1, 3, 4, 5]], asked[:, [0, 1, 3, 4, 5]])
    np.testing.assert_allclose(applied[:, 2], -0.01, atol=1e-6)
    np.testing.assert_allclose(asked[:, 2], 0.0, atol=1e-6)
    # Until somebody asks, the gripper's own goal (0.25 open) holds; then it is asked to close.
    assert set(np.round(asked[:, 6], 3)) == {0.5, 1.0}
    assert (np.diff(asked[:, 6]) >= 0).all()
    np.testing.assert_allclose(applied[:, 6], 0.5)
    assert (dataset["source"] == 2).all()
    assert dataset.collection["sources"][2] == "human"


def test_it_begins_when_it_is_known_what_the_arm_follows(tmp_path: Path) -> None:
    dataset, _ = made(tmp_path, Motion(lost=lambda stream, t: stream == "command" and t < 0.28))
    assert 0.29 < seconds(dataset)[0] < 0.31
    assert (dataset["source"] == 2).all()


def test_deltas_begin_where_the_arm_was_when_they_came(tmp_path: Path) -> None:
    delta = (0.02, 0.0, 0.0, 0.0, 0.0, 0.0)
    dataset, _ = made(tmp_path, Motion(kind="cartesian_delta", goal=lambda t: delta))
    x = dataset["action"][:, 0] * dataset.action_spec[0].scale
    # Commanded every 50 ms, during which the arm moves by 5 mm.
    assert (x > 0.02 - 0.003).all()
    assert (x < 0.02 + 0.006).all()


def test_joint_commands_become_moves_of_the_joints(tmp_path: Path) -> None:
    dataset, _ = made(tmp_path, Motion(kind="joint_position", goal=lambda t: (0.15, -0.1)))
    names = [dim.name for dim in dataset.action_spec]
    assert names == ["shoulder", "elbow", "gripper"]
    way = dataset["action"][:, :2] * [dim.scale for dim in dataset.action_spec[:2]]
    expected = np.clip(np.array((0.15, -0.1)) - dataset["robot0_joint_pos"], -0.15, 0.15)
    np.testing.assert_allclose(way, expected, atol=1e-6)


def test_while_nobody_commands_the_arm_stays_and_nobody_acts(tmp_path: Path) -> None:
    mode = lambda t: Mode.HUMAN if t < 1 else Mode.PAUSED  # noqa: E731
    dataset, _ = made(tmp_path, Motion(mode=mode))
    held = seconds(dataset) >= 1.0
    assert held.sum() > 10
    assert (dataset["source"][held] == 0).all()
    assert (dataset["action"][held, :6] == 0).all()
    assert (dataset["source"][seconds(dataset) < 0.9] == 2).all()


def test_the_return_from_a_person_to_the_policy_is_a_hand_over(tmp_path: Path) -> None:
    """0.5 s in which the arm holds, and 0.3 s in which the policy's action is scaled up."""
    mode = lambda t: Mode.HUMAN if 0.4 < t < 1.2 else Mode.POLICY  # noqa: E731
    dataset, _ = made(tmp_path, Motion(mode=mode, cameras=()))
    acted = [dataset.collection["sources"][number] for number in dataset["source"]]
    runs = [(who, len(list(steps))) for who, steps in itertools.groupby(acted)]
    assert [who for who, _ in runs] == ["policy", "human", "handover", "policy"]
    assert runs[2][1] == round(0.8 * RATE)
    assert abs(runs[1][1] - 0.3 * RATE) <= 1


def test_a_person_who_does_not_hand_back_drives_to_the_end(tmp_path: Path) -> None:
    dataset, _ = made(tmp_path, Motion(mode=lambda t: Mode.HUMAN if t > 1 else Mode.POLICY, cameras=()))
    assert set(dataset["source"]) == {1, 2}
    assert dataset["source"][-1] == 2


def test_what_was_asked_and_refused_is_asked_but_not_applied(tmp_path: Path) -> None:
    refused = lambda t: Code.UNREACHABLE if 0.5 < t < 1.0 else Code.NAN if t > 1.5 else None  # noqa: E731
    goal = lambda t: (*position(0.5), *quaternion(0.0)) if t <= 0.5 else (*position(1.0), *quaternion(0.0))  # noqa: E731
    dataset, _ = made(tmp_path, Motion(goal=goal, refused=refused))
    t, scale = seconds(dataset), dataset.action_spec[0].scale
    during = (t > 0.52) & (t < 0.9)
    x = dataset["robot0_eef_pos"][:, 0]
    np.testing.assert_allclose((dataset["action"][during, 0] * scale + x[during]), 0.4, atol=0.006)
    np.testing.assert_allclose((dataset["applied_action"][during, 0] * scale + x[during]), 0.35, atol=1e-5)
    late = t > 1.6
    np.testing.assert_allclose(dataset["action"][late, 0], dataset["applied_action"][late, 0])


def test_an_outcome_is_a_reward_and_an_end(tmp_path: Path) -> None:
    outcomes = ("success", "failure", "discarded", "recovered")
    motions = [Motion(seconds=0.5, outcome=outcome, cameras=()) for outcome in outcomes]  # type: ignore[arg-type]
    dataset, derived = made(tmp_path, *motions)
    assert dataset.success.tolist() == [True, False]
    assert dataset.seeds.tolist() == [0, 1]
    ends = dataset.episode_ends - 1
    assert (
        np.flatnonzero(dataset["terminated"]).tolist()
        == np.flatnonzero(dataset["reward"]).tolist()
        == [ends[0]]
    )
    assert np.flatnonzero(dataset["truncated"]).tolist() == [ends[1]]
    assert derived.left_out == {2: "discarded", 3: "recovered"}
    recorded = dataset.collection["recorded"]
    assert [one["labels"] for one in recorded["episodes"]] == [{"n": "0"}, {"n": "1"}]
    assert recorded["left_out"] == {"2": "discarded", "3": "recovered"}
    everything, _ = made(tmp_path, name="y.zarr", outcomes=outcomes)
    assert everything.success.tolist() == [True, False, False, False]


def content(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        found.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return found.hexdigest()


def test_the_same_recordings_give_the_same_bytes_and_others_another_dataset(tmp_path: Path) -> None:
    motions = [Motion(seconds=1.0), Motion(seconds=0.7, encoding="jpeg", outcome="failure")]
    before = None
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        dataset, _ = made(folder, *motions)
        before = before or content(folder / "x.zarr")
        assert content(folder / "x.zarr") == before
    raw = content(tmp_path / "a" / "x.raw")
    other, _ = made(tmp_path / "a", name="y.zarr", rate=10.0, cameras=("wrist",))
    assert content(tmp_path / "a" / "x.raw") == raw
    assert other.observation_spec.cameras == ("wrist",)
    assert other.environment["control_freq"] == 10.0
    assert abs(other.num_steps - dataset.num_steps / 2) <= 2
    none, _ = made(tmp_path / "a", name="z.zarr", cameras=())
    assert "render" not in none.environment


def test_the_dataset_can_be_learned_from(tmp_path: Path) -> None:
    dataset, _ = made(tmp_path, Motion(seconds=1.0), Motion(seconds=1.0))
    windows = make_windows(dataset, 2, 4, dataset.success)
    assert windows.state.shape == (dataset.num_steps, 2, dataset.observation_spec.state_size)
    assert set(windows.images) == {"front", "wrist"}
    assert dataset.environment["real_robot"]["name"] == "bench"
    assert dataset.environment["horizon"] == max(rows.stop - rows.start for rows in dataset.episodes)


GONE = {
    "states are missing": Motion(lost=lambda stream, t: stream == "state" and 0.5 < t < 1.2),
    "no wrist for": Motion(lost=lambda stream, t: stream == "wrist" and t > 1.2),
    "it has no image of front": Motion(lost=lambda stream, t: stream == "front"),
    "was followed and is missing": Motion(lost=lambda stream, t: stream == "command" and 0.5 < t < 1.0),
    "it has no measured state": Motion(lost=lambda stream, t: stream == "state"),
    "it is shorter than a step": Motion(seconds=0.04, image_rate=100.0),
    "no gripper for": Motion(unread=lambda t: 5.1 if t > 1.5 else 0.0),
    "nobody commanded the arm": Motion(mode=lambda t: Mode.ARMED, refused=lambda t: Code.MODE),
}


@pytest.mark.parametrize("reason", GONE)
def test_an_episode_with_a_hole_is_left_out_with_the_reason(tmp_path: Path, reason: str) -> None:
    dataset, derived = made(tmp_path, GONE[reason], Motion())
    assert list(derived.left_out) == [0]
    assert reason in derived.left_out[0]
    assert dataset.seeds.tolist() == [1]


def test_a_short_gap_is_bridged_and_flagged(
    tmp_path: Path, robot_rl: RunCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    root = record(
        tmp_path / "x.raw",
        Motion(lost=lambda stream, t: stream == "wrist" and 0.7 < t < 1.05),
        Motion(lost=lambda stream, t: stream == "state" and 0.5 < t < 0.85),
        Motion(lost=lambda stream, t: stream == "wrist" and 0.7 < t < 0.9),
    )
    capsys.readouterr()
    robot_rl("data derive", f"raw={root}", f"out={tmp_path}/x.zarr")
    said = capsys.readouterr().err
    dataset = Dataset(tmp_path / "x.zarr")
    wrist, state, short = notes_of(dataset)
    assert dataset.num_episodes == 3
    assert [note["flagged"] for note in (wrist, state, short)] == [True, True, False]
    (age,) = wrist["bridged_ms"].values()
    assert 300 < age < 400
    assert age == pytest.approx(dataset["age_ms.wrist"].max(), abs=0.1)
    assert f"episode 0 is flagged: no wrist for {age:.0f} ms; the last known value fills the gap" in said
    assert "episode 1 is flagged: no state for" in said
    assert "bridged_ms" not in short
    robot_rl("data derive", f"raw={root}", f"out={tmp_path}/y.zarr", "max_age_ms=250")
    assert Dataset(tmp_path / "y.zarr").num_episodes == 1


def test_a_gripper_is_not_read_while_it_moves(tmp_path: Path) -> None:
    """As that of the Franka: its age is known, and no fault."""
    dataset, _ = made(tmp_path, Motion(unread=lambda t: max(0.0, t - 0.5) if t < 1.4 else 0.0))
    assert dataset["age_ms.gripper"].max() > 800
    (note,) = notes_of(dataset)
    assert not note["flagged"]


def test_a_dataset_of_a_task_has_the_cameras_that_were_recorded(tmp_path: Path) -> None:
    cameras = ("agentview", "robot0_eye_in_hand")
    specs = tuple(CameraSpec(name=name, serial=name, width=32, height=24, rate=30.0) for name in cameras)
    robot = msgspec.structs.replace(ROBOT, cameras=specs)
    raw = RawDataset(record(tmp_path / "x.raw", Motion(seconds=0.2, cameras=cameras), robot=robot))
    task = load_group("task", "lift", TaskConfig)

    def seen(task: TaskConfig, **given: object) -> tuple[object, object, list[int]]:
        config = data_derive.Config(raw=str(raw.root), out="x", task=task, **given)  # type: ignore[arg-type]
        with ExitStack() as ended:
            derive_config = data_derive.derive_config(config, raw, ended)
        assert derive_config.environment is not None
        observed = derive_config.environment["observation_spec"]
        return derive_config.cameras, observed["cameras"], observed["image_size"]

    assert seen(task) == (cameras, list(cameras), [24, 32])
    assert seen(task, cameras=["agentview"]) == (("agentview",), ["agentview"], [24, 32])
    assert seen(task, cameras=[])[:2] == ((), [])
    own = replace(task, cameras=["robot0_eye_in_hand"], image_size=[24, 32])
    assert seen(own) == (("robot0_eye_in_hand",), ["robot0_eye_in_hand"], [24, 32])
    assert seen(own, cameras=["agentview"]) == (("agentview",), ["agentview"], [24, 32])
    assert seen(own, cameras=[])[:2] == ((), [])


def test_no_damaged_episode_gets_into_a_dataset(tmp_path: Path) -> None:
    """One flipped bit, or a file that is cut or missing, anywhere: the episode is left out by its name."""
    short = Motion(seconds=0.4, image_rate=10.0)
    root = record(tmp_path / "x.raw", short)
    folder = root / "episode_000000"
    rng = np.random.default_rng(0)
    for number in range(40):
        path = folder / ("log", "front.images", "wrist.images", "footer")[number % 4]
        whole = path.read_bytes()
        place = int(rng.integers(len(whole)))
        if number < 32:
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << number % 8]) + whole[place + 1 :])
        elif number < 36:
            # Where a record ends, so that nothing looks torn.
            ends = [0, *(end for end, _ in read_log(path))]
            path.write_bytes(whole[: ends[-2]])
        else:
            path.unlink()
        # Without another episode no dataset is written, which takes much longer than to read one.
        with pytest.raises(ValueError, match=r"no episode that can be used .*episode_000000"):
            derive(RawDataset(root), tmp_path / "x.zarr", DeriveConfig(rate=RATE))
        assert not (tmp_path / "x.zarr").exists(), (path, place)
        path.write_bytes(whole)
    (folder / "footer").unlink()
    record(root, short)
    derived = derive(RawDataset(root), tmp_path / "x.zarr", DeriveConfig(rate=RATE))
    assert list(derived.left_out) == [0]
    assert "episode_000000" in derived.left_out[0]
    assert Dataset(tmp_path / "x.zarr").seeds.tolist() == [1]


def test_a_camera_of_a_recording_names_no_file_elsewhere(tmp_path: Path) -> None:
    root = record(tmp_path / "x.raw", Motion(seconds=0.4, cameras=()), Motion(seconds=0.4, cameras=()))
    log = root / "episode_000000" / "log"
    payloads = [payload for _, payload in read_log(log)]
    for name in ("../../../evil", "/tmp/evil", "..", ""):
        payloads[0] = msgspec.msgpack.encode({**msgspec.msgpack.decode(payloads[0]), "cameras": [name]})
        log.write_bytes(b"".join(record_header(payload) + payload for payload in payloads))
        out = tmp_path / "x.zarr"
        derived = derive(RawDataset(root), out, DeriveConfig(rate=RATE, images="video"))
        assert "episode_000000/log is damaged" in derived.left_out[0]
        shutil.rmtree(out)
    assert [path.name for path in tmp_path.iterdir()] == ["x.raw"]


def test_what_cannot_be_one_dataset_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    record(tmp_path / "x.raw", Motion(seconds=0.5), Motion(seconds=0.5, kind="joint_position", goal=joints))
    with pytest.raises(ValueError, match="episode_000001 has other commands or other images"):
        made(tmp_path)
    with pytest.raises(ValueError, match="has no images of left; it has front, wrist"):
        made(tmp_path, cameras=("left",))
    with pytest.raises(
        ValueError, match=r"no episode that can be used \(episode 0: success; episode 1: success"
    ):
        made(tmp_path, outcomes=("failure",))
    record(tmp_path / "depth.raw", Motion(seconds=0.5, encoding="depth16"))
    with pytest.raises(ValueError, match="front measures depth"):
        derive(RawDataset(tmp_path / "depth.raw"), tmp_path / "x.zarr", DeriveConfig(rate=RATE))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["depth.raw", "x.raw"]


def test_the_commands_derive_and_repair(
    tmp_path: Path, robot_rl: RunCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    root = record(tmp_path / "x.raw", Motion(seconds=0.5), Motion(seconds=0.5, outcome="discarded"))
    # As a recorder leaves it that was killed before the rename.
    (root / "episode_000001").rename(root / "open-0123")
    out = tmp_path / "x.zarr"
    robot_rl("data derive", f"raw={root}", f"out={out}", "rate=10", "cameras=[front]", "name=stack")
    said = capsys.readouterr()
    assert f"{out}: 1 of 1 episodes, 4 steps" in said.out
    assert "1 not committed: see `robot-rl data repair`" in said.err
    assert Dataset(out).environment["task"] == "stack"
    robot_rl("data repair", f"raw={root}")
    assert "episode 1: discarded, 0.5 s" in capsys.readouterr().out
    robot_rl("data repair", f"raw={root}")
    assert capsys.readouterr().out == f"{root}: 0 repaired\n"


def test_images_as_video_are_those_of_the_arrays_but_for_what_compression_loses(tmp_path: Path) -> None:
    motions = [Motion(seconds=1.0), Motion(seconds=0.6, encoding="jpeg")]
    exact, _ = made(tmp_path, *motions)
    video, _ = made(tmp_path, name="v.zarr", images="video")
    assert not list((tmp_path / "v.zarr" / "data").glob("images.*"))
    assert video.observation_spec == exact.observation_spec
    rows = np.random.default_rng(0).integers(exact.num_steps, size=40)
    for camera in ("front", "wrist"):
        images = exact[f"images.{camera}"]
        np.testing.assert_array_equal(exact.frames(camera)[rows], images[rows])
        seen = video[f"images.{camera}"]
        assert np.abs(seen.astype(int) - images).max() <= 2
        np.testing.assert_array_equal(video.frames(camera)[rows], seen[rows])
        assert video.observations()[f"images.{camera}"].shape == images.shape
    before = content(tmp_path / "v.zarr")
    again = tmp_path / "again"
    again.mkdir()
    made(again, *motions, images="video", name="v.zarr")
    assert content(again / "v.zarr") == before


@pytest.mark.full
def test_the_same_images_give_the_same_video_however_often_they_are_written(tmp_path: Path) -> None:
    y, x, t = np.mgrid[:48, :64, :30]
    images = np.stack([x * 3 + t, y * 3 + t, x + y + 2 * t], -1).transpose(2, 0, 1, 3).astype(np.uint8)
    rng, files = np.random.default_rng(0), set()
    held: list[np.ndarray] = []
    for _ in range(300):
        # Memory that x264 gets has been used by others, as in a long process: mbtree's result depends on it.
        held = [*held[-50:], np.full(rng.integers(1, 100_000), rng.integers(255), np.uint8)]
        write_frames(tmp_path / "x.mp4", [images])
        files.add((tmp_path / "x.mp4").read_bytes())
    assert len(files) == 1


def test_a_video_that_is_missing_or_cut_is_named(tmp_path: Path) -> None:
    made(tmp_path, Motion(seconds=0.5), Motion(seconds=0.5), images="video")
    path = tmp_path / "x.zarr" / "videos" / "wrist" / "000001.mp4"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    dataset = Dataset(tmp_path / "x.zarr")
    with pytest.raises(ValueError, match=r"wrist/000001.mp4 is damaged"):
        dataset["images.wrist"]
    with pytest.raises(ValueError, match=r"wrist/000001.mp4 is damaged"):
        dataset.frames("wrist")[np.array([dataset.num_steps - 1])]
    assert dataset["images.front"].shape[0] == dataset.num_steps
    path.unlink()
    with pytest.raises(ValueError, match=r"is torn: videos/wrist/000001.mp4 is missing"):
        Dataset(tmp_path / "x.zarr")


def test_a_last_command_whose_message_came_after_the_end_costs_its_steps_alone(
    plain: tuple[Dataset, DeriveResult], tmp_path: Path
) -> None:
    def late(stream: str, t: float) -> bool:
        return stream == "command" and t >= 1.9

    whole, _ = plain
    dataset, derived = made(tmp_path / "late", Motion(lost=late))
    assert not derived.left_out
    assert 0 < whole.num_steps - dataset.num_steps <= 4
    for key in ("action", "applied_action", "robot0_joint_pos", "time"):
        np.testing.assert_array_equal(dataset[key], whole[key][: dataset.num_steps])


def test_what_is_known_of_an_episode_goes_into_the_dataset(plain: tuple[Dataset, DeriveResult]) -> None:
    dataset, _ = plain
    (note,) = dataset.collection["recorded"]["episodes"]
    assert note["lost"] == {}
    assert note["events"] == []


def test_recordings_of_a_served_task_say_that_they_are_of_one(
    tmp_path: Path, robot_rl: RunCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    served = msgspec.structs.replace(ROBOT, driver="robosuite", name="lift")
    for robot, name in ((served, "served"), (ROBOT, "own")):
        record(tmp_path / f"{name}.raw", Motion(), robot=robot)
        capsys.readouterr()
        robot_rl("data derive", f"raw={tmp_path}/{name}.raw", f"out={tmp_path}/{name}.zarr")
        said = capsys.readouterr().err
        assert ("task=lift makes a dataset of the task" in said) == (robot is served)


def test_the_label_instruction_becomes_the_instruction_of_the_episode(tmp_path: Path) -> None:
    asked = {"instruction": "open the drawer"}
    dataset, derived = made(tmp_path, Motion(labels=asked), Motion(labels={"instruction": "close it"}))
    assert dataset.instructions == ["open the drawer", "close it"]
    assert dataset.environment["instructions"] == ["open the drawer", "close it"]
    assert dataset.observation_spec.instruction
    assert not derived.left_out


@pytest.mark.parametrize("images", ["zarr", "video"])
@pytest.mark.parametrize("last", [False, True])
def test_an_episode_with_a_damaged_image_leaves_nothing_behind(
    images: str, last: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [{"instruction": "open the drawer"}, {"instruction": "close it"}]
    decode, all_damaged = timeline.image_of, False

    def image_of(frame: Any, payload: Any) -> np.ndarray:
        image = decode(frame, payload)
        if frame.encoding == "jpeg" or all_damaged:
            raise ProtocolError(Code.MALFORMED, "the image is damaged")
        return image

    monkeypatch.setattr(timeline, "image_of", image_of)
    good = Motion(labels=told[1], cameras=("front",))
    bad = Motion(labels=told[0], cameras=("front",), encoding="jpeg")
    motions = (good, bad) if last else (bad, good)
    dataset, derived = made(tmp_path, *motions, images=images)
    number = 1 if last else 0
    assert list(derived.left_out) == [number]
    assert dataset.num_episodes == 1
    assert dataset.environment["instructions"] == ["close it"]
    assert find_problems(dataset.path) == []
    videos = list(dataset.path.glob("videos/*/*.mp4"))
    assert len(videos) == (images == "video")
    all_damaged = True
    with pytest.raises(ValueError, match="has no episode that can be used"):
        derive(RawDataset(tmp_path / "x.raw"), tmp_path / "y.zarr", DeriveConfig(rate=RATE, images=images))
    assert not (tmp_path / "y.zarr").exists()


def test_an_episode_without_the_label_is_skipped_by_name(tmp_path: Path) -> None:
    dataset, derived = made(tmp_path, Motion(labels={"instruction": "open the drawer"}), Motion())
    assert dataset.instructions == ["open the drawer"]
    assert derived.left_out == {1: "it has no label instruction, unlike those before"}


@pytest.mark.parametrize("text", ["", "x" * 129])
def test_an_episode_whose_label_is_no_instruction_is_skipped(tmp_path: Path, text: str) -> None:
    good, bad = ({"instruction": each} for each in ("open the drawer", text))
    dataset, derived = made(tmp_path, Motion(labels=good), Motion(labels=bad))
    assert dataset.instructions == ["open the drawer"]
    assert derived.left_out[1].startswith("its label cannot be an instruction: ")


def test_the_time_limit_of_policies_is_that_of_the_longest_recording_or_given(tmp_path: Path) -> None:
    longest, _ = made(tmp_path, Motion(), name="longest.zarr")
    assert longest.environment["horizon"] == longest.num_steps
    given, _ = made(tmp_path, Motion(), name="given.zarr", horizon=300)
    assert given.environment["horizon"] == 300


@pytest.mark.parametrize("option", [{"rate": 5.0}, {"name": "x"}, {"horizon": 3}])
def test_what_a_task_says_is_not_given_beside_it(option: dict[str, object]) -> None:
    (name,) = option
    with pytest.raises(ValueError, match=f"{name}=… is for an arm"):
        data_derive.Config(raw="a.raw", out="a.zarr", task=TaskConfig(name="lift"), **option)  # type: ignore[arg-type]
