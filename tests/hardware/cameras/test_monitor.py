"""What the server makes of a camera, without processes and with time as an argument."""

import math

import pytest

from robot_rl.hardware.cameras.monitor import CameraMonitor
from robot_rl.hardware.cameras.settings import CameraSettings, Custom, MonitorLimits, RealSense, Sim
from robot_rl.hardware.cameras.wire import Image
from robot_rl.hardware.clock import MS
from robot_rl.hardware.spec import CameraSpec

RATE = 20.0
PERIOD = 50 * MS
START = 10**12


class Life:
    """A camera that is watched, and the time."""

    def __init__(
        self, limits: MonitorLimits | None = None, source: Custom | Sim | RealSense | None = None
    ) -> None:
        spec = CameraSpec(name="wrist", serial="1", width=4, height=4, rate=RATE)
        self.events: list[tuple[str, str]] = []
        settings = CameraSettings(spec=spec, source=source or RealSense())
        self.monitor = CameraMonitor(
            settings, limits or MonitorLimits(), lambda what, text: self.events.append((what, text))
        )
        self.now = START
        self.number = 0
        self.dropped = 0

    def begin(self) -> tuple[int, int]:
        self.monitor.restart(self.now)
        assert self.monitor.is_due(self.now)
        self.number, self.dropped = self.monitor.start(self.now)
        return self.number, self.dropped

    def image(self, fingerprint: int | None = None, lose: int = 0) -> None:
        self.number += lose
        self.dropped += lose
        self.monitor.image(
            Image(
                camera="wrist",
                pid=1,
                number=self.number,
                t_capture=self.now - 5 * MS,
                t_recv=self.now,
                dropped=self.dropped,
                fingerprint=self.number if fingerprint is None else fingerprint,
            )
        )
        self.number += 1

    def run(self, images: int, fingerprint: int | None = None, period: int = PERIOD) -> str | None:
        """Some images; the first verdict there is."""
        for _ in range(images):
            self.image(fingerprint)
            if verdict := self.monitor.kill_reason(self.now):
                return verdict
            if verdict := self.wait(period):
                return verdict
        return None

    def wait(self, nanoseconds: int) -> str | None:
        """Time in which the server looks at it as often as it does."""
        end = self.now + nanoseconds
        while self.now < end:
            self.now = min(end, self.now + 50 * MS)
            if verdict := self.monitor.kill_reason(self.now):
                return verdict
        return None

    @property
    def happened(self) -> list[str]:
        return [what for what, _ in self.events]


def test_a_camera_that_does_its_work_is_left_alone() -> None:
    life = Life()
    assert life.begin() == (0, 0)
    assert life.monitor.status(life.now).phase == "starting"
    assert life.run(200) is None
    status = life.monitor.status(life.now)
    assert (status.phase, status.number, status.dropped, status.restarts) == ("running", 199, 0, 0)
    assert status.fps == pytest.approx(RATE, rel=0.05)
    assert status.age_ms == pytest.approx(55.0)
    assert life.happened == ["camera_running"]


def test_silence_is_a_stall() -> None:
    life = Life()
    life.begin()
    life.run(10)
    verdict = life.wait(2000 * MS)
    assert verdict is not None
    assert "no new image" in verdict
    assert life.happened == ["camera_running", "camera_stalled"]
    assert life.now - START < 2000 * MS


def test_a_slow_camera_is_given_five_periods() -> None:
    life = Life(MonitorLimits(stall_ms=1.0))
    life.begin()
    life.run(5)
    assert life.wait(3 * PERIOD) is None
    assert life.wait(3 * PERIOD) is not None


def test_a_camera_that_never_gives_an_image_is_stalled() -> None:
    life = Life(MonitorLimits(start_ms=3000.0))
    life.begin()
    assert life.wait(2900 * MS) is None
    assert life.wait(200 * MS) is not None
    assert life.happened == ["camera_stalled"]


def test_equal_images_with_new_numbers_are_a_frozen_camera() -> None:
    life = Life(MonitorLimits(frozen_after=10))
    life.begin()
    life.run(20)
    assert life.run(9, fingerprint=77) is None
    assert not life.monitor.status(life.now).frozen
    assert life.run(1, fingerprint=77) == "it was frozen"
    assert life.monitor.status(life.now).frozen
    assert life.happened == ["camera_running", "camera_frozen"]


def test_a_rendered_scene_may_be_still() -> None:
    life = Life(source=Sim(scene="scene.xml", feed="ipc:///nowhere"))
    life.begin()
    assert life.run(100, fingerprint=77) is None
    assert life.happened == ["camera_running"]


def test_too_low_a_rate_is_reported_once_and_its_end_too() -> None:
    life = Life()
    life.begin()
    life.run(60)
    assert life.run(40, period=2 * PERIOD) is None
    assert life.monitor.status(life.now).slow
    assert life.monitor.status(life.now).fps == pytest.approx(RATE / 2, rel=0.1)
    assert life.run(100) is None
    assert not life.monitor.status(life.now).slow
    assert life.happened == ["camera_running", "camera_slow", "camera_restored"]


def test_eighty_percent_of_the_rate_is_enough() -> None:
    life = Life()
    life.begin()
    assert life.run(200, period=round(PERIOD / 0.85)) is None
    assert life.happened == ["camera_running"]


def test_lost_images_are_counted_exactly() -> None:
    life = Life()
    life.begin()
    for lose in (0, 0, 2, 0, 5, 1):
        life.image(lose=lose)
        life.now += PERIOD
    assert life.monitor.status(life.now).dropped == 8


def test_restarts_wait_longer_each_time_and_come_to_an_end() -> None:
    life = Life(MonitorLimits(restarts=3, backoff_ms=1000.0))
    life.begin()
    waits = []
    for _ in range(3):
        life.monitor.ended(life.now, "the cable came off")
        died = life.now
        while not life.monitor.is_due(life.now):
            life.now += 10 * MS
        waits.append((life.now - died) / MS)
        life.monitor.start(life.now)
    assert waits == [1000, 2000, 4000]
    life.monitor.ended(life.now, "the cable came off")
    assert life.monitor.status(life.now).phase == "failed"
    assert life.happened == ["camera_down"] * 3 + ["camera_failed"]
    life.now += 10**15
    assert not life.monitor.is_due(life.now)


def test_old_restarts_are_forgotten() -> None:
    life = Life(MonitorLimits(restarts=1, restart_window_ms=10_000.0))
    life.begin()
    for _ in range(5):
        life.monitor.ended(life.now, "died")
        life.now += 11_000 * MS
        assert life.monitor.is_due(life.now)
        life.monitor.start(life.now)
    assert life.monitor.status(life.now).restarts == 5


def test_a_final_failure_is_not_tried_again_until_somebody_asks() -> None:
    life = Life()
    life.begin()
    life.monitor.ended(life.now, "another camera", final=True)
    assert life.happened == ["camera_failed"]
    assert life.monitor.status(life.now).trouble == "another camera"
    life.monitor.restart(life.now)
    assert life.monitor.is_due(life.now)


def test_numbers_go_on_over_a_restart_and_its_outage_is_lost_images() -> None:
    life = Life()
    life.begin()
    life.run(10)
    life.monitor.ended(life.now, "died")
    life.now += 3000 * MS
    first, dropped = life.monitor.start(life.now)
    outage = life.now - (START + 9 * PERIOD)
    assert first == 10 + math.floor(outage / PERIOD)
    assert dropped == first - 10


def test_the_last_image_before_a_restart_does_not_count_as_frozen() -> None:
    life = Life(MonitorLimits(frozen_after=3))
    life.begin()
    life.run(2, fingerprint=7)
    life.monitor.ended(life.now, "died")
    life.now += 2000 * MS
    life.number, life.dropped = life.monitor.start(life.now)
    assert life.run(2, fingerprint=7) is None
    assert life.run(1, fingerprint=7) is not None


def test_a_server_that_slept_blames_itself_first() -> None:
    life = Life()
    life.begin()
    life.run(10)
    life.now += 30_000 * MS
    assert life.monitor.kill_reason(life.now) is None
    # What had arrived meanwhile is seen by now.
    life.image()
    life.now += 50 * MS
    assert life.monitor.kill_reason(life.now) is None
    # Sleeping all the time is no excuse for ever.
    life.now += 30_000 * MS
    life.monitor.kill_reason(life.now)
    life.now += 30_000 * MS
    assert life.monitor.kill_reason(life.now) is not None


def test_a_camera_that_slept_with_its_server_has_time_for_its_next_image() -> None:
    life = Life(MonitorLimits(stall_ms=1000))
    life.begin()
    life.run(10)
    life.now += 1600 * MS
    assert life.monitor.kill_reason(life.now) is None
    life.now += 50 * MS
    assert life.monitor.kill_reason(life.now) is None
    life.image()
    # A server that sleeps again and again sees one that is dead all the same.
    verdicts = []
    for _ in range(4):
        for gap in (600, 50):
            life.now += gap * MS
            verdicts.append(life.monitor.kill_reason(life.now))
    assert any(verdicts)
