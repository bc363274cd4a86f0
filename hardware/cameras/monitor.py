"""Monitors one camera: detects stalls and decides on restarts. Pure logic; time is an argument."""

from collections import deque
from collections.abc import Callable
from typing import Literal

import msgspec

from robot_rl.hardware.cameras.settings import CameraSettings, MonitorLimits
from robot_rl.hardware.cameras.wire import Image
from robot_rl.hardware.clock import MS

OnEvent = Callable[[str, str], None]
"""Callback with the event (`camera_running`, `camera_stalled`, `camera_frozen`, `camera_slow`,
`camera_restored`, `camera_down`, `camera_failed`) and a message that starts with the camera's name."""

Phase = Literal["starting", "running", "waiting", "failed"]
"""`waiting`: for its restart; `failed`: until `restart` is called."""

_STALL_PERIODS = 5
_RATE_PERIODS = 20
"""Lower bound on the rate window, so that one late image does not make a camera slow."""


class CameraStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a camera."""

    name: str
    phase: Phase
    number: int | None
    """Number of its newest image."""
    pid: int | None
    """Process that captured it."""
    age_ms: float | None
    """Time since its capture."""
    fps: float
    """Images per second over the rate window."""
    dropped: int
    """Images lost so far (gaps in the numbers)."""
    frozen: bool
    """Whether the device repeats the same image."""
    slow: bool
    restarts: int
    """Restarts so far."""
    trouble: str
    """Why its process last ended, or why the camera failed."""


class CameraMonitor:
    """Follows one camera across restarts of its process."""

    def __init__(self, settings: CameraSettings, limits: MonitorLimits, on_event: OnEvent) -> None:
        self._name = settings.spec.name
        self._rate = settings.spec.rate
        self._noisy = settings.source.noisy
        self._limits = limits
        self._on_event = on_event
        self._stall = round(max(limits.stall_ms * MS, _STALL_PERIODS * 1e9 / self._rate))
        self._window = round(max(limits.rate_window_ms * MS, _RATE_PERIODS * 1e9 / self._rate))
        self._phase: Phase = "waiting"
        self._due: int | None = None
        self._restarted: deque[int] = deque()
        self._restarts = 0
        self._trouble = ""
        self._newest: Image | None = None
        self._reset(0)

    def _reset(self, now: int) -> None:
        """Reset what was measured of the previous process."""
        self._began = now
        self._looked = now
        self._excused = False
        self._woke = now
        self._before_sleep: int | None = None
        self._first: int | None = None
        self._received: deque[int] = deque()
        self._equal = 0
        self._frozen = False
        self._slow = False

    # ---- events --------------------------------------------------------------------------------------

    def start(self, now: int) -> tuple[int, int]:
        """The process is about to start; return its first image number and the number of lost images."""
        self._phase = "starting"
        self._reset(now)
        if self._newest is None:
            return 0, 0
        # Count the images missed meanwhile as lost. So numbers stay proportional to time, and no number is
        # used twice even if the last process sent more images than have arrived.
        missed = max(0, round((now - self._newest.t_recv) * 1e-9 * self._rate))
        return self._newest.number + 1 + missed, self._newest.dropped + missed

    def image(self, image: Image) -> None:
        """The process sent an image."""
        if self._newest is not None and self._first is not None:
            same = image.fingerprint == self._newest.fingerprint
            self._equal = self._equal + 1 if same else 1
        else:
            self._equal = 1
        if self._first is None:
            self._first = image.t_recv
            self._phase = "running"
            self._say("running", f"images from number {image.number} on")
        self._newest = image
        self._received.append(image.t_recv)
        frozen = self._noisy and self._equal >= self._limits.frozen_after
        if frozen and not self._frozen:
            self._say("frozen", f"{self._equal} equal images in a row, the last one is number {image.number}")
        self._frozen = frozen

    def ended(self, now: int, reason: str, *, final: bool = False) -> None:
        """The process ended. Schedule a restart, unless there were too many or the failure is `final`."""
        limits = self._limits
        self._trouble = reason
        while self._restarted and self._restarted[0] <= now - limits.restart_window_ms * MS:
            self._restarted.popleft()
        tries = len(self._restarted)
        if final or tries >= limits.restarts:
            self._phase, self._due = "failed", None
            after = "" if final else f" ({tries} restarts in {limits.restart_window_ms * 1e-3:g} s)"
            self._say("failed", f"{reason}{after}; it stays off until the server is restarted")
            return
        wait = limits.backoff_ms * 2**tries
        self._phase, self._due = "waiting", now + round(wait * MS)
        self._restarted.append(self._due)
        self._restarts += 1
        self._say("down", f"{reason}; restart {tries + 1} of {limits.restarts} in {wait * 1e-3:g} s")

    def restart(self, now: int) -> None:
        """Schedule an immediate start and forget earlier failures."""
        self._restarted.clear()
        self._phase, self._due = "waiting", now
        self._trouble = ""

    # ---- decisions -----------------------------------------------------------------------------------

    def is_due(self, now: int) -> bool:
        """Whether the process should be started now."""
        return self._phase == "waiting" and self._due is not None and now >= self._due

    def kill_reason(self, now: int) -> str | None:
        """Why the process must be killed, None if it may continue."""
        suspended = now - self._looked > self._stall // 2
        self._looked = now
        self._excused = suspended and not self._excused
        if self._excused:
            # The server (or the whole machine) was suspended, so a missing image is not the camera's fault.
            # Excused once until a new image arrives.
            if self._newest is not None and self._newest.number != self._before_sleep:
                self._woke, self._before_sleep = now, self._newest.number
            return None
        if self._frozen:
            return "it was frozen"
        if self._phase == "starting" and now - self._began > self._limits.start_ms * MS:
            self._say("stalled", reason := f"no image {self._limits.start_ms * 1e-3:g} s after its start")
            return reason
        if self._phase == "running":
            assert self._newest is not None
            if (silent := now - max(self._newest.t_recv, self._woke)) > self._stall:
                self._say("stalled", reason := f"no new image for {silent / MS:.0f} ms")
                return reason
            self._check_rate(now)
        return None

    def status(self, now: int) -> CameraStatus:
        """Current status."""
        newest = self._newest
        return CameraStatus(
            name=self._name,
            phase=self._phase,
            number=newest.number if newest else None,
            pid=newest.pid if newest else None,
            age_ms=(now - newest.t_capture) / MS if newest else None,
            fps=self._fps(now),
            dropped=newest.dropped if newest else 0,
            frozen=self._frozen,
            slow=self._slow,
            restarts=self._restarts,
            trouble=self._trouble,
        )

    def _check_rate(self, now: int) -> None:
        if self._first is None or now - self._first < self._window:
            return
        fps = self._fps(now)
        least = self._limits.min_rate * self._rate
        if not self._slow and fps < least:
            self._slow = True
            self._say("slow", f"{fps:.1f} images per second, nominal {self._rate:g}")
        elif self._slow and fps >= (least + self._rate) / 2:
            self._slow = False
            self._say("restored", f"{fps:.1f} images per second")

    def _fps(self, now: int) -> float:
        """Images per second over the last window, or since the first image if that is shorter."""
        while self._received and self._received[0] <= now - self._window:
            self._received.popleft()
        if self._first is None or now <= self._first:
            return 0.0
        return len(self._received) / (min(self._window, now - self._first) * 1e-9)

    def _say(self, what: str, text: str) -> None:
        self._on_event(f"camera_{what}", f"{self._name}: {text}")
