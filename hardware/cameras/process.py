"""A camera's process: takes images in its main thread and pushes them to the server from another.

`python -m robot_rl.hardware.cameras.process <what it shall do, JSON>`; only the server starts it.
"""

import ctypes
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

from robot_rl.hardware.cameras.capture_clock import CaptureClock
from robot_rl.hardware.cameras.device import CameraDevice, CameraError, WrongCamera
from robot_rl.hardware.cameras.publisher import DropOldestQueue, Publisher, Taken
from robot_rl.hardware.cameras.settings import CameraSettings, Custom, OpenCV, RealSense
from robot_rl.hardware.cameras.wire import Failed, Start

QUEUE = 2
"""Images between the threads. What waits grows old: when a machine is busy, more would only be older."""
_LOOK = 0.2
"""s between two looks at whether to stop."""
_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Run until the server ends it or is gone; returns an exit code."""
    start = msgspec.json.decode(sys.argv[1], type=Start)
    die_with(start.server)
    # Ctrl-C in a terminal goes to all processes; the server ends its cameras itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    pending: DropOldestQueue[Taken | Failed] = DropOldestQueue(QUEUE)
    publisher = Publisher(zmq.Context.instance(), start, pending)
    publisher.start()
    try:
        take_images(start, pending, lambda: stop.is_set() or not publisher.is_alive())
    except CameraError as error:
        name, final = start.settings.spec.name, isinstance(error, WrongCamera)
        pending.put(Failed(camera=name, pid=os.getpid(), reason=str(error), final=final))
        publisher.join()
        return 1
    publisher.stop()
    publisher.join()
    return 0 if stop.is_set() else 1


def die_with(server: int) -> None:
    """Let the kernel kill this process when the server is gone, even if it hangs or is stopped then."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != server:
        # It was gone before.
        sys.exit(1)


def take_images(start: Start, pending: DropOldestQueue[Taken | Failed], stopped: Callable[[], bool]) -> None:
    """Open the camera and put its images into the mailbox until `stopped`.

    Raises:
        CameraError: the camera fails, or it is another one than the configuration says.
    """
    settings = start.settings
    clock, numbers = CaptureClock(), Numbers(start.first)
    device = make_device(settings)
    try:
        device.open()
        if device.serial != settings.spec.serial:
            raise WrongCamera(
                f"this camera has the serial {device.serial!r}, not {settings.spec.serial!r}; plug in the "
                "right one or correct the robot's configuration"
            )
        while not stopped():
            raw = device.next_frame(_LOOK)
            number = numbers.next(raw.number) if raw else None
            if raw is None or number is None:
                continue
            check_image(raw.image, settings)
            pending.put(Taken(raw.image, number, clock.captured(raw), max(0, raw.t_device or 0), raw.t_recv))
    finally:
        device.close()


def make_device(settings: CameraSettings) -> CameraDevice:
    """The camera, not open yet.

    Raises:
        ImportError, AttributeError: a custom camera's factory is not there.
    """
    spec, source = settings.spec, settings.source
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


class Numbers:
    """A device's numbers, which may start anew, as numbers that count up."""

    def __init__(self, first: int) -> None:
        self._next = first
        self._device: int | None = None

    def next(self, device: int) -> int | None:
        """The number of the image that the device calls `device`; None if it was that before."""
        if device == self._device:
            return None
        missing = device - self._device - 1 if self._device is not None else 0
        self._device = device
        number = self._next + max(0, missing)
        self._next = number + 1
        return number


def check_image(image: NDArray, settings: CameraSettings) -> None:
    """Make sure that an image is what the configuration says.

    Raises:
        WrongCamera: it has another size or type.
    """
    spec = settings.spec
    color = image.dtype == np.uint8 and image.shape == (spec.height, spec.width, 3)
    depth = image.dtype == np.uint16 and image.shape == (spec.height, spec.width)
    if not color and not (depth and settings.published == "raw"):
        wanted = "uint8 RGB or uint16 depth" if settings.published == "raw" else "uint8 RGB"
        raise WrongCamera(
            f"its images are {image.dtype} {list(image.shape)}, not {spec.width}x{spec.height} of {wanted}; "
            "correct the robot's configuration"
        )


if __name__ == "__main__":
    sys.exit(main())
