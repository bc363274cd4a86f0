"""All cameras of the server: runs and monitors their processes and forwards their images to clients."""

import queue
import tempfile
import threading
from collections.abc import Sequence

import msgspec
import zmq

from robot_rl.hardware.cameras.camera_process import CameraProcess, end_all
from robot_rl.hardware.cameras.monitor import CameraMonitor, CameraStatus, OnEvent
from robot_rl.hardware.cameras.settings import CameraSettings, MonitorLimits, default_limits
from robot_rl.hardware.cameras.wire import Report, server_socket
from robot_rl.hardware.clock import MS, MonotonicClock

_CHECK_INTERVAL = 50
"""Interval of process checks, ms."""
_MAX_FORWARDED = 64
"""Largest number of images forwarded between two checks."""


class CameraSet:
    """Runs all cameras of a robot from a background thread.

    `images` is the server's image socket, used only by this thread until `close`. `on_event(what, text)` is
    called from the thread and must not block.
    """

    def __init__(
        self,
        cameras: Sequence[CameraSettings],
        images: "zmq.Socket[bytes]",
        on_event: OnEvent,
        limits: MonitorLimits | None = None,
    ) -> None:
        """Create without starting.

        Raises:
            ValueError: if two cameras have the same name or the same serial.
        """
        _check_distinct("name", [camera.spec.name for camera in cameras])
        _check_distinct("serial", [camera.spec.serial for camera in cameras])
        self._images = images
        self._clock = MonotonicClock()
        self._decoder: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)
        self._folder = tempfile.TemporaryDirectory(prefix="cameras-")
        self._endpoint = f"ipc://{self._folder.name}/reports"
        self._reports = server_socket(images.context, self._endpoint)
        self._cameras = {
            camera.spec.name: CameraProcess(
                camera, CameraMonitor(camera, limits or default_limits(camera.source), on_event)
            )
            for camera in cameras
        }
        self._on_event = on_event
        self._restarts: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._latest = self._statuses()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cameras", daemon=True)

    def __enter__(self) -> "CameraSet":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start all cameras; returns immediately."""
        for name in self._cameras:
            self._restarts.put(name)
        self._thread.start()

    def restart(self, name: str) -> None:
        """Restart a camera, also one that has failed.

        Raises:
            ValueError: if there is no camera of that name.
        """
        if name not in self._cameras:
            raise ValueError(f"no camera {name!r}; known cameras: {', '.join(self._cameras) or 'none'}")
        self._restarts.put(name)

    def status(self) -> dict[str, CameraStatus]:
        """Status of each camera at the last check. Thread-safe and non-blocking.

        Raises:
            RuntimeError: if the monitoring thread is not running.
        """
        if not self._thread.is_alive():
            raise RuntimeError(
                "the cameras are not monitored: they were not started, were closed, or crashed"
            )
        looked, statuses = self._latest
        passed = (self._clock.now() - looked) / MS
        return {
            name: msgspec.structs.replace(
                status, age_ms=None if status.age_ms is None else status.age_ms + passed
            )
            for name, status in statuses.items()
        }

    def close(self) -> None:
        """Stop all cameras. Safe to call twice."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        self._reports.close()
        self._folder.cleanup()

    # ---- in the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._forward()
                self._check()
                self._latest = self._statuses()
        except Exception as error:
            self._on_event("camera_failed", f"all cameras: {error!r}; restart the server")
            raise
        finally:
            end_all(self._cameras.values())

    def _forward(self) -> None:
        """Wait briefly for images from the cameras and forward them to the clients."""
        if not self._reports.poll(_CHECK_INTERVAL):
            return
        for _ in range(_MAX_FORWARDED):
            try:
                first, *rest = self._reports.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            report = self._decoder.decode(first.buffer)
            if self._cameras[report.camera].receive(report):
                for message in rest:
                    self._images.send(message, copy=False)

    def _check(self) -> None:
        """Check the processes."""
        now = self._clock.now()
        while not self._restarts.empty():
            self._cameras[self._restarts.get()].restart(now)
        for camera in self._cameras.values():
            camera.check(now, self._endpoint)

    def _statuses(self) -> tuple[int, dict[str, CameraStatus]]:
        """Time and status of each camera. The tuple is replaced as a whole, so readers need no lock."""
        now = self._clock.now()
        return now, {name: camera.monitor.status(now) for name, camera in self._cameras.items()}


def _check_distinct(what: str, values: list[str]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"two cameras have the {what} {value!r}; correct the robot's configuration")
