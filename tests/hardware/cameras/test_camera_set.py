"""The server's cameras: real processes, which are killed, stopped, frozen and mixed up."""

import errno
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from robot_rl.hardware.cameras import camera_process
from robot_rl.hardware.cameras.reader import FrameReader
from robot_rl.hardware.cameras.settings import MonitorLimits
from robot_rl.hardware.protocol.arrays import pixels
from tests.hardware.cameras.conftest import DEVICES, PATIENCE, PATIENT, Bench, is_alive, pattern, until
from tests.hardware.cameras.devices_for_tests import number_in

ROOT = Path(__file__).resolve().parents[3]
SOON_STALLED = msgspec.structs.replace(PATIENT, stall_ms=3000)


def test_images_reach_a_client_whole_and_in_order(bench: Bench) -> None:
    bench.start(pattern("wrist"), pattern("front"))
    for name in ("wrist", "front"):
        frames = bench.frames(name, 10)
        for frame, payload in frames:
            assert (frame.camera, frame.width, frame.height, frame.encoding) == (name, 64, 48, "rgb8")
            # The device counts from 1.
            assert number_in(pixels(frame, payload)) == frame.number + 1
            assert frame.t_capture == frame.t_capture_raw <= frame.t_recv <= time.monotonic_ns()
        numbers = [frame.number for frame, _ in frames]
        assert numbers == sorted(set(numbers))
        # Its status is that of the last check.
        until(lambda name=name, first=numbers[0]: (bench.running(name).number or 0) >= first)
        assert bench.status(name).restarts == 0
        assert bench.happened(name) == ["camera_running"]


def test_a_camera_may_send_jpegs(bench: Bench) -> None:
    bench.start(pattern("wrist", encoding="jpeg"))
    with FrameReader(bench.clients, ["wrist"], max_age_ms=1e6) as reader:
        seen = reader.wait(PATIENCE)["wrist"]
    assert seen.frame.encoding == "jpeg"
    assert seen.image.shape == (48, 64, 3)
    # Noise, which a JPEG blurs but keeps.
    assert seen.image.std() > 30
    assert reader.damaged == {"wrist": 0}


def test_images_are_published_smaller_than_a_device_takes_them(bench: Bench) -> None:
    bench.start(msgspec.structs.replace(pattern("wrist"), capture=(640, 480)))
    with FrameReader(bench.clients, ["wrist"], max_age_ms=1e6) as reader:
        seen = reader.wait(PATIENCE)["wrist"]
    assert seen.image.shape == (48, 64, 3)
    # Means of ten by ten pixels of noise between 0 and 255.
    assert 4 < seen.image[1:].std() < 12


def test_ctrl_c_and_a_closed_terminal_are_left_to_the_server(bench: Bench) -> None:
    bench.start(pattern("wrist"))
    pid = bench.running("wrist").pid
    assert pid is not None
    for number in (signal.SIGINT, signal.SIGHUP):
        os.kill(pid, number)
        bench.frames("wrist", 10)
    assert bench.running("wrist").pid == pid
    assert bench.happened("wrist") == ["camera_running"]


def test_a_process_that_the_machine_does_not_start_is_reported_and_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = subprocess.Popen
    refusals = iter([OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))])

    def refused_once(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
        for refusal in refusals:
            raise refusal
        return start(*arguments, **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(camera_process.subprocess, "Popen", refused_once)
    bench.start(pattern("wrist"))
    bench.running("wrist")
    assert "Resource temporarily unavailable" in bench.wait_for("camera_down", "wrist")
    assert bench.happened("wrist") == ["camera_down", "camera_running"]


def test_a_killed_camera_is_reported_and_comes_back(bench: Bench) -> None:
    # So long that images are missed meanwhile.
    limits = msgspec.structs.replace(PATIENT, backoff_ms=200)
    bench.start(pattern("wrist"), pattern("front"), limits=limits)
    pid, other = bench.running("wrist").pid, bench.running("front").pid
    last = bench.frames("wrist", 1)[0][0].number
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert "SIGKILL" in bench.wait_for("camera_down", "wrist")
    bench.wait_for("camera_running", "wrist", times=2)
    # Its status is that of the last check; images of the killed process may still be on their way.
    until(lambda: bench.running("wrist").pid != pid)
    newest = bench.status("wrist").number
    assert newest is not None
    numbers = []
    while not numbers or numbers[-1] < newest:
        numbers.append(bench.frames("wrist", 1)[0][0].number)
    # No number twice, although the device counts from the beginning again.
    assert last < numbers[0]
    assert numbers == sorted(set(numbers))
    status = bench.status("wrist")
    assert status.pid != pid
    assert status.restarts == 1
    assert status.dropped > 0
    assert bench.status("front").pid == other
    assert bench.happened("front") == ["camera_running"]


def test_a_stopped_camera_is_a_stalled_one_and_replaced(bench: Bench) -> None:
    bench.start(pattern("wrist"), limits=SOON_STALLED)
    pid = bench.running("wrist").pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    assert "no new image" in bench.wait_for("camera_stalled", "wrist")
    until(lambda: bench.running("wrist").pid != pid)
    until(lambda: not is_alive(pid))


def test_a_camera_that_hangs_is_a_stalled_one(bench: Bench, tmp_path: Path) -> None:
    bench.start(pattern("wrist", hang_at=5, once=str(tmp_path / "hung")), limits=SOON_STALLED)
    bench.wait_for("camera_stalled", "wrist")
    bench.wait_for("camera_running", "wrist", times=2)


def test_a_frozen_camera_is_reported_and_restarted(bench: Bench, tmp_path: Path) -> None:
    bench.start(pattern("wrist", freeze_at=5, once=str(tmp_path / "froze")))
    assert "10 equal images" in bench.wait_for("camera_frozen", "wrist")
    assert "frozen" in bench.wait_for("camera_down", "wrist")
    bench.wait_for("camera_running", "wrist", times=2)
    bench.frames("wrist", 30)
    assert not bench.status("wrist").frozen
    assert bench.happened("wrist").count("camera_frozen") == 1


def test_images_that_the_device_loses_are_counted_exactly(bench: Bench) -> None:
    bench.start(pattern("wrist", lose_every=3))
    frames = bench.frames("wrist", 20)
    for (before, _), (after, payload) in itertools.pairwise(frames):
        assert after.dropped - before.dropped == after.number - before.number - 1
        assert (after.number + 1) % 3 != 0
        assert number_in(pixels(after, payload)) == after.number + 1
        # Each third number so far, and what a busy machine lost on top.
        assert after.dropped >= (after.number + 1) // 3
    assert frames[-1][0].dropped > frames[0][0].dropped


def test_a_camera_with_another_serial_is_refused(bench: Bench) -> None:
    bench.start(pattern("wrist", serial="another"), pattern("front"))
    text = bench.wait_for("camera_failed", "wrist")
    assert "'another'" in text
    assert "'serial-wrist'" in text
    bench.running("front")
    until(lambda: bench.status("wrist").phase == "failed")
    status = bench.status("wrist")
    assert (status.restarts, status.number) == (0, None)
    assert "'another'" in status.trouble
    assert bench.happened("wrist") == ["camera_failed"]
    # Asked for, it is looked at again.
    bench.cameras.restart("wrist")
    bench.wait_for("camera_failed", "wrist", times=2)
    with pytest.raises(ValueError, match="known cameras: wrist, front"):
        bench.cameras.restart("elbow")


def test_images_of_another_size_are_refused(bench: Bench) -> None:
    bench.start(pattern("wrist", factory=f"{DEVICES}:too_wide"))
    assert "not 64x48" in bench.wait_for("camera_failed", "wrist")


@pytest.mark.parametrize(("factory", "code"), [("dies_at_once", 7), ("misspelt", 1)])
def test_restarts_come_to_an_end(bench: Bench, factory: str, code: int) -> None:
    limits = MonitorLimits(start_ms=90_000, restarts=1, backoff_ms=10, restart_window_ms=10**9)
    bench.start(pattern("wrist", factory=f"{DEVICES}:{factory}"), limits=limits)
    assert f"exit code {code}" in bench.wait_for("camera_failed", "wrist")
    assert bench.happened("wrist") == ["camera_down", "camera_failed"]
    until(lambda: bench.status("wrist").phase == "failed")
    assert bench.status("wrist").restarts == 1


def test_why_a_camera_failed_is_told(bench: Bench, tmp_path: Path) -> None:
    bench.start(pattern("wrist", fail_at=3, once=str(tmp_path / "failed"), closed=str(tmp_path / "closed")))
    assert "the cable came off" in bench.wait_for("camera_down", "wrist")
    assert (tmp_path / "closed").exists()
    bench.wait_for("camera_running", "wrist", times=2)


def test_a_running_camera_can_be_started_anew(bench: Bench) -> None:
    bench.start(pattern("wrist"))
    pid = bench.running("wrist").pid
    bench.cameras.restart("wrist")
    until(lambda: bench.status("wrist").pid != pid)
    assert bench.happened("wrist") == ["camera_running"] * 2


def test_a_server_that_ends_lets_its_cameras_close_their_devices(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(camera_process, "_GRACE", PATIENCE)
    cameras = bench.start(pattern("wrist", closed=str(tmp_path / "closed")))
    pid = bench.running("wrist").pid
    cameras.close()
    cameras.close()
    assert (tmp_path / "closed").exists()
    assert pid is not None
    assert not is_alive(pid)
    with pytest.raises(RuntimeError, match="not monitored"):
        cameras.status()


def test_a_camera_that_does_not_hear_does_not_keep_the_server_from_ending(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(camera_process, "_GRACE", 0.1)
    cameras = bench.start(pattern("wrist"))
    pid = bench.running("wrist").pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    cameras.close()
    assert not is_alive(pid)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_camera_dies_with_its_server(tmp_path: Path, stopped: bool) -> None:
    os.chmod(tmp_path, 0o700)
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.hardware.cameras.camera_server", str(tmp_path)],
        cwd=ROOT,
        # What a killed server leaves behind.
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    pid = int(server.stdout.readline())
    assert is_alive(pid)
    if stopped:
        os.kill(pid, signal.SIGSTOP)
    server.kill()
    server.wait()
    until(lambda: not is_alive(pid))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_cameras_that_nobody_watches_any_more_end(bench: Bench) -> None:
    bench.start(pattern("wrist"), pattern("front"))
    pids = [bench.running(name).pid for name in ("wrist", "front")]
    bench.broken = OSError("the log's disk is full")
    assert pids[0] is not None
    os.kill(pids[0], signal.SIGKILL)
    until(lambda: not any(is_alive(pid) for pid in pids if pid))
    bench.cameras._thread.join(PATIENCE)
    with pytest.raises(RuntimeError, match="crashed"):
        bench.cameras.status()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_that_nobody_watches_cameras_any_more_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.start(pattern("wrist"))
    bench.running("wrist")
    monkeypatch.setattr(bench.cameras, "_check", lambda: 1 / 0)
    until(lambda: any(text.startswith("all cameras: ZeroDivisionError") for _, text in bench.events))


def test_a_software_realsense_streams_with_its_own_time_stamps(bench: Bench) -> None:
    camera = pattern(
        "wrist",
        factory="tests.hardware.cameras.soft_realsense:streaming",
        start_ms=5_000_000,
        start_number=1000,
    )
    bench.start(camera)
    frames = [frame for frame, _ in bench.frames("wrist", 15)]
    for before, after in itertools.pairwise(frames):
        assert after.number > before.number
        # By the device's clock, which began 5000 s before the process.
        assert 5_000e9 < before.t_capture_raw < after.t_capture_raw < 6_000e9
        assert after.t_capture <= after.t_recv <= time.monotonic_ns()
    # The two clocks run alike: what one says of the whole time, the other does, but for the delays.
    whole = (frames[-1].t_capture - frames[0].t_capture, frames[-1].t_capture_raw - frames[0].t_capture_raw)
    delays = [frame.t_recv - frame.t_capture_raw for frame in frames]
    assert abs(whole[0] - whole[1]) <= max(delays) - min(delays) + 200e6
    assert bench.status("wrist").restarts == 0


def test_names_and_serials_are_each_given_once(bench: Bench) -> None:
    with pytest.raises(ValueError, match="two cameras have the name 'wrist'"):
        bench.start(pattern("wrist"), pattern("wrist"))
    front = pattern("front")
    same = msgspec.structs.replace(front, spec=msgspec.structs.replace(front.spec, name="wrist"))
    with pytest.raises(ValueError, match="two cameras have the serial 'serial-front'"):
        bench.start(front, same)
