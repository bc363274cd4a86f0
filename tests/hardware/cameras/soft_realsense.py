"""RealSense cameras without hardware: librealsense's own software device."""

import threading
import time

import numpy as np
import pyrealsense2 as rs

from robot_rl.hardware.cameras.realsense import RealSenseCamera
from robot_rl.hardware.cameras.settings import RealSense
from robot_rl.hardware.spec import CameraSpec


class SoftRealSense:
    """A software device of librealsense with one stream, in its own context."""

    def __init__(self, spec: CameraSpec, stream: str = "color") -> None:
        self.context = rs.context()
        # A context drops a software device without another reference.
        self._held: list[object] = []
        self.context.set_devices_changed_callback(lambda change: self._held.append(change.get_new_devices()))
        self._device = rs.software_device()
        self._device.register_info(rs.camera_info.serial_number, spec.serial)
        self._device.register_info(rs.camera_info.name, "software")
        self._sensor = self._device.add_sensor("sensor")
        self._bytes = 3 if stream == "color" else 2
        video = rs.video_stream()
        video.type, video.fmt = (
            (rs.stream.color, rs.format.rgb8) if stream == "color" else (rs.stream.depth, rs.format.z16)
        )
        video.index, video.uid, video.bpp = 0, 1, self._bytes
        video.width, video.height, video.fps = spec.width, spec.height, round(spec.rate)
        intrinsics = rs.intrinsics()
        intrinsics.width, intrinsics.height = spec.width, spec.height
        video.intrinsics = intrinsics
        if stream == "depth":
            self._sensor.add_read_only_option(rs.option.depth_units, 0.0001)
        self._profile = self._sensor.add_video_stream(video, True).as_video_stream_profile()
        self._device.add_to(self.context)

    def inject(
        self,
        image: np.ndarray,
        number: int,
        milliseconds: float,
        domain: rs.timestamp_domain,
        lag_us: int = 0,
    ) -> None:
        """Let the device give an image; `lag_us` is from the middle of the exposure to its time stamp."""
        frame = rs.software_video_frame()
        frame.pixels, frame.bpp, frame.stride = image, self._bytes, image.shape[1] * self._bytes
        frame.frame_number, frame.timestamp, frame.domain = number, milliseconds, domain
        frame.profile = self._profile
        if lag_us:
            self._sensor.set_metadata(rs.frame_metadata_value.frame_timestamp, 1_000_000)
            self._sensor.set_metadata(rs.frame_metadata_value.sensor_timestamp, 1_000_000 - lag_us)
        self._sensor.on_video_frame(frame)


def streaming(spec: CameraSpec, start_ms: float, start_number: int) -> RealSenseCamera:
    """A RealSense whose device clock began `start_ms` before this process; it streams by itself."""
    soft = SoftRealSense(spec)
    camera = RealSenseCamera(spec, RealSense(), soft.context)
    began = time.monotonic()

    def stream() -> None:
        number = 0
        while True:
            time.sleep(max(0.0, began + number / spec.rate - time.monotonic()))
            image = np.full((spec.height, spec.width, 3), number % 256, np.uint8)
            stamp = start_ms + (time.monotonic() - began) * 1e3
            soft.inject(image, start_number + number, stamp, rs.timestamp_domain.hardware_clock)
            number += 1

    threading.Thread(target=stream, daemon=True).start()
    return camera
