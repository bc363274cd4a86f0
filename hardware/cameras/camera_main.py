"""Camera process: captures images in the main thread and sends them to the server from a second thread.

Started by the server only: `python -m robot_rl.hardware.cameras.camera_main <Start, JSON>`.
"""

import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable

import msgspec
import numpy as np
import zmq
from numpy.typing import NDArray
from PIL import Image

from robot_rl.hardware.cameras.capture_clock import CaptureClock
from robot_rl.hardware.cameras.device import CameraDevice, CameraError, WrongCamera
from robot_rl.hardware.cameras.publisher import CapturedImage, DropOldestQueue, Publisher
from robot_rl.hardware.cameras.settings import CameraSettings, Custom, OpenCV, RealSense
from robot_rl.hardware.cameras.wire import FAILURE_REPORTED, Failed, Start
from robot_rl.hardware.child_process import kill_with_parent
from robot_rl.hardware.spec import CameraSpec

QUEUE = 2
"""Images queued between the threads. Short, since a longer queue would only delay images."""
_POLL_INTERVAL = 0.2
"""Interval at which the stop flag is checked, s."""


def main() -> int:
    """Run until the server stops this process or dies; return the exit code."""
    start = msgspec.json.decode(sys.argv[1], type=Start)
    kill_with_parent(start.server)
    # Ctrl-C and the end of a terminal go to all of its processes, but the server stops its cameras itself.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    pending: DropOldestQueue[CapturedImage | Failed] = DropOldestQueue(QUEUE)
    context = zmq.Context()
    publisher = Publisher(context, start, pending)
    publisher.start()
    try:
        capture_images(start, pending, lambda: stop.is_set() or not publisher.is_alive())
    except CameraError as error:
        name, final = start.settings.spec.name, isinstance(error, WrongCamera)
        pending.put(Failed(camera=name, pid=os.getpid(), reason=str(error), final=final))
        publisher.join()
        # Waits until the report is sent. The end of Python does not, and drops it.
        context.term()
        return FAILURE_REPORTED
    publisher.stop()
    publisher.join()
    context.term()
    return 0 if stop.is_set() else 1


def capture_images(
    start: Start, pending: DropOldestQueue[CapturedImage | Failed], stopped: Callable[[], bool]
) -> None:
    """Open the camera and queue its images until `stopped`.

    Raises:
        CameraError: if the camera fails or is not the configured one.
    """
    settings = start.settings
    clock, numbers = CaptureClock(), FrameNumbers(start.first)
    device = make_device(settings)
    try:
        device.open()
        if device.serial != settings.spec.serial:
            raise WrongCamera(
                f"this camera has the serial {device.serial!r}, not {settings.spec.serial!r}; plug in the "
                "right one or correct the robot's configuration"
            )
        while not stopped():
            raw = device.next_frame(_POLL_INTERVAL)
            number = numbers.next(raw.number) if raw else None
            if raw is None or number is None:
                continue
            check_image(raw.image, settings)
            if settings.capture and raw.image.ndim == 2:
                raise WrongCamera("depth is not scaled; leave capture out of the camera's settings")
            image = scale_down(raw.image, settings.spec) if settings.capture else raw.image
            pending.put(
                CapturedImage(image, number, clock.captured(raw), max(0, raw.t_device or 0), raw.t_recv)
            )
    finally:
        device.close()


def make_device(settings: CameraSettings) -> CameraDevice:
    """Construct the camera without opening it. Imports only the library that it needs.

    Raises:
        ImportError, AttributeError: if a custom camera's factory does not exist.
    """
    spec, source = settings.device_spec, settings.source
    if isinstance(source, RealSense):
        from robot_rl.hardware.cameras.realsense import RealSenseCamera

        return RealSenseCamera(spec, source)
    if isinstance(source, OpenCV):
        from robot_rl.hardware.cameras.opencv import OpenCVCamera

        return OpenCVCamera(spec, source)
    if isinstance(source, Custom):
        module, _, factory = source.factory.partition(":")
        device: CameraDevice = getattr(importlib.import_module(module), factory)(spec, **source.options)
        return device
    from robot_rl.hardware.cameras.sim import SimCamera

    return SimCamera(spec, source)


class FrameNumbers:
    """Converts a device's frame counter, which may restart, to increasing frame numbers."""

    def __init__(self, first: int) -> None:
        self._next = first
        self._device: int | None = None

    def next(self, device: int) -> int | None:
        """Frame number for the device's counter value `device`; None if it is the same image as before."""
        if device == self._device:
            return None
        missing = device - self._device - 1 if self._device is not None else 0
        self._device = device
        number = self._next + max(0, missing)
        self._next = number + 1
        return number


def check_image(image: NDArray, settings: CameraSettings) -> None:
    """Check that an image matches the configuration.

    Raises:
        WrongCamera: if size or type differ.
    """
    spec = settings.device_spec
    color = image.dtype == np.uint8 and image.shape == (spec.height, spec.width, 3)
    depth = image.dtype == np.uint16 and image.shape == (spec.height, spec.width)
    if not color and not (depth and settings.resolved_encoding == "raw"):
        wanted = "uint8 RGB or uint16 depth" if settings.resolved_encoding == "raw" else "uint8 RGB"
        raise WrongCamera(
            f"its images are {image.dtype} {list(image.shape)}, not {spec.width}x{spec.height} of {wanted}; "
            "correct the robot's configuration"
        )


def scale_down(image: NDArray, spec: CameraSpec) -> NDArray[np.uint8]:
    """Scale the largest part with the shape of `spec`, in the middle of an image [H, W, 3], down to it.

    Each pixel is the mean of the area that it covers.
    """
    height, width = image.shape[:2]
    factor = min(width / spec.width, height / spec.height)
    left, top = (width - factor * spec.width) / 2, (height - factor * spec.height) / 2
    part = (left, top, width - left, height - top)
    size = spec.width, spec.height
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BOX, box=part))


if __name__ == "__main__":
    sys.exit(main())
