"""From settings to a device. A camera's process loads only the library that its own device needs."""

import importlib

from robot_rl.hardware.cameras.device import CameraDevice
from robot_rl.hardware.cameras.settings import CameraSettings, Custom, OpenCV, RealSense


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
