"""USB cameras (V4L2) and video files through OpenCV."""

import time
from pathlib import Path

import cv2

from robot_rl.hardware.cameras.device import CameraError, RawFrame
from robot_rl.hardware.cameras.settings import OpenCV
from robot_rl.hardware.clock import MS
from robot_rl.hardware.spec import CameraSpec


class OpenCVCamera:
    """Camera by its name in `/dev/v4l/by-id`, which does not change when replugged or rebooted."""

    def __init__(self, spec: CameraSpec, source: OpenCV) -> None:
        self._spec = spec
        self._source = source
        self._path = Path(source.folder) / spec.serial
        self._capture: cv2.VideoCapture | None = None
        self._is_device = False
        self._number = -1
        self._stamp: float | None = None
        self.serial = ""

    def open(self) -> None:
        if not self._path.exists():
            there = ", ".join(sorted(path.name for path in self._path.parent.glob("*"))) or "none"
            raise CameraError(
                f"there is no {self._path} (found: {there}); check the camera's cable, or the serial in "
                "the robot's configuration"
            )
        # Leave the other cores to the control loop.
        cv2.setNumThreads(1)
        self._is_device = self._path.is_char_device()
        # Choose the backend explicitly: OpenCV would try to open a camera as a file.
        capture = cv2.VideoCapture(str(self._path), cv2.CAP_V4L2 if self._is_device else cv2.CAP_FFMPEG)
        self._capture = capture
        if not capture.isOpened():
            raise CameraError(f"{self._path} cannot be opened; is another program using it?")
        if self._is_device:
            capture.set(cv2.CAP_PROP_FOURCC, cv2.VideoWriter.fourcc(*self._source.fourcc))
            capture.set(cv2.CAP_PROP_FRAME_WIDTH, self._spec.width)
            capture.set(cv2.CAP_PROP_FRAME_HEIGHT, self._spec.height)
            capture.set(cv2.CAP_PROP_FPS, self._spec.rate)
        self.serial = self._path.name

    def next_frame(self, timeout: float) -> RawFrame | None:
        """See `CameraDevice`. V4L2 waits up to 10 s and ignores `timeout`."""
        assert self._capture is not None, "not open"
        there, image = self._capture.read()
        t_recv = time.monotonic_ns()
        if not there:
            raise CameraError(f"{self._path} gives no more images")
        # V4L2: start or end of the exposure, CLOCK_MONOTONIC. Video file: position in the video.
        stamp = self._capture.get(cv2.CAP_PROP_POS_MSEC)
        self._number += self._periods_since_last(stamp)
        self._stamp = stamp
        return RawFrame(
            image=cv2.cvtColor(image, cv2.COLOR_BGR2RGB),
            number=self._number,
            t_device=round(stamp * MS) if stamp > 0 or not self._is_device else None,
            t_recv=t_recv,
            clock="monotonic" if self._is_device else "own",
        )

    def close(self) -> None:
        if self._capture is not None:
            self._capture.release()
            self._capture = None

    def _periods_since_last(self, stamp: float) -> int:
        """Increment of the frame counter, from time stamps since OpenCV hides the driver's counter."""
        if self._stamp is None:
            return 1
        return max(1, round((stamp - self._stamp) * 1e-3 * self._spec.rate))
