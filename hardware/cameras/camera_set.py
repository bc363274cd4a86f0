"""The server's cameras: starts and watches their processes, and passes their images on to clients."""

import queue
import tempfile
import threading
from collections.abc import Sequence
from types import TracebackType

import msgspec
import zmq

from robot_rl.hardware.cameras.camera_process import CameraProcess, end_all
from robot_rl.hardware.cameras.monitor import CameraMonitor, CameraStatus, OnEvent
from robot_rl.hardware.cameras.settings import CameraSettings, MonitorLimits
from robot_rl.hardware.cameras.wire import Report, server_socket
from robot_rl.hardware.clock import MS, MonotonicClock

_LOOK = 50
"""ms between two looks at the processes."""
_BURST = 64
"""Images that are passed on between two looks, at most."""


class CameraSet:
    """All cameras of a robot, in a thread of their own.

    `images` is the server's image socket, which this thread takes over until `close`. `on_event(what, text)`
    is called from it and must not block.
    """

    def __init__(
        self,
        cameras: Sequence[CameraSettings],
        images: "zmq.Socket[bytes]",
        on_event: OnEvent,
        limits: MonitorLimits | None = None,
    ) -> None:
        """Start nothing yet.

        Raises:
            ValueError: two cameras have the same name or are the same device.
        """
        _check_distinct("name", [camera.spec.name for camera in cameras])
        _check_distinct("serial", [camera.spec.serial for camera in cameras])
        limits = limits or MonitorLimits()
        self._images = images
        self._clock = MonotonicClock()
        self._decoder: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)
        self._folder = tempfile.TemporaryDirectory(prefix="cameras-")
        self._endpoint = f"ipc://{self._folder.name}/reports"
        self._reports = server_socket(images.context, self._endpoint)
        self._cameras = {
            camera.spec.name: CameraProcess(camera, CameraMonitor(camera, limits, on_event))
            for camera in cameras
        }
        self._wanted: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._seen = self._statuses()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cameras", daemon=True)

    def __enter__(self) -> "CameraSet":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start all cameras; returns at once."""
        for name in self._cameras:
            self._wanted.put(name)
        self._thread.start()

    def restart(self, name: str) -> None:
        """Start a camera that has failed, or another one anew.

        Raises:
            ValueError: there is none of that name.
        """
        if name not in self._cameras:
            raise ValueError(f"no camera {name!r}; there are: {', '.join(self._cameras) or 'none'}")
        self._wanted.put(name)

    def status(self) -> dict[str, CameraStatus]:
        """How each camera did at the last look, a moment ago. From any thread, and it waits for nothing.

        Raises:
            RuntimeError: nobody watches them any more.
        """
        if not self._thread.is_alive():
            raise RuntimeError("the cameras are not watched: they were not started, were closed, or crashed")
        looked, statuses = self._seen
        passed = (self._clock.now() - looked) / MS
        return {
            name: msgspec.structs.replace(
                status, age_ms=None if status.age_ms is None else status.age_ms + passed
            )
            for name, status in statuses.items()
        }

    def close(self) -> None:
        """End all cameras. Safe to call twice."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        self._reports.close()
        self._folder.cleanup()

    # ---- in the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._pass_on()
                self._look()
                self._seen = self._statuses()
        finally:
            end_all(self._cameras.values())

    def _pass_on(self) -> None:
        """Give what the cameras have sent to the clients, after waiting for it for a while."""
        if not self._reports.poll(_LOOK):
            return
        for _ in range(_BURST):
            try:
                first, *rest = self._reports.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            report = self._decoder.decode(first.buffer)
            if self._cameras[report.camera].hear(report):
                for message in rest:
                    self._images.send(message, copy=False)

    def _look(self) -> None:
        """See to the processes."""
        now = self._clock.now()
        while not self._wanted.empty():
            self._cameras[self._wanted.get()].restart(now)
        for camera in self._cameras.values():
            camera.look(now, self._endpoint)

    def _statuses(self) -> tuple[int, dict[str, CameraStatus]]:
        """When it was looked, and what was seen; replaced as a whole, so that no thread waits for another."""
        now = self._clock.now()
        return now, {name: camera.monitor.status(now) for name, camera in self._cameras.items()}


def _check_distinct(what: str, values: list[str]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"two cameras have the {what} {value!r}; correct the robot's configuration")
