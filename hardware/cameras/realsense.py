"""RealSense cameras, read with librealsense."""

import time
from typing import Any

import numpy as np
import pyrealsense2 as rs

from robot_rl.hardware.cameras.device import CameraError, DeviceClock, RawFrame, WrongCamera
from robot_rl.hardware.cameras.settings import RealSense
from robot_rl.hardware.clock import MS
from robot_rl.hardware.spec import CameraSpec

_QUEUE = 4
"""Frames that librealsense queues; it drops the oldest, which shows as a gap in the numbers."""
_STREAMS = {"color": (rs.stream.color, rs.format.rgb8), "depth": (rs.stream.depth, rs.format.z16)}
_CLOCKS: dict[Any, DeviceClock] = {
    rs.timestamp_domain.hardware_clock: "own",
    # librealsense corrects for the delay that the offset estimator cannot see.
    rs.timestamp_domain.global_time: "wall",
    rs.timestamp_domain.system_time: "wall",
}
_METADATA = (rs.frame_metadata_value.frame_timestamp, rs.frame_metadata_value.sensor_timestamp)


class RealSenseCamera:
    """One stream of the RealSense with the given serial number."""

    def __init__(self, spec: CameraSpec, source: RealSense, context: rs.context | None = None) -> None:
        self._spec = spec
        self._source = source
        self._context = context
        self._queue = rs.frame_queue(_QUEUE)
        self._sensor: Any = None
        self._streaming = False
        self._depth_mm = 1.0
        self.serial = ""

    def open(self) -> None:
        try:
            device = self._find()
            self._sensor, profile = self._choose(device)
            if self._sensor.supports(rs.option.global_time_enabled):
                self._sensor.set_option(rs.option.global_time_enabled, 1)
            if self._source.stream == "depth":
                self._depth_mm = self._sensor.get_option(rs.option.depth_units) * 1e3
            self._sensor.open(profile)
            self._sensor.start(self._queue)
            self._streaming = True
            self.serial = device.get_info(rs.camera_info.serial_number)
        except RuntimeError as error:
            raise CameraError(f"librealsense: {error}") from error

    def next_frame(self, timeout: float) -> RawFrame | None:
        try:
            there, frame = self._queue.try_wait_for_frame(max(1, round(timeout * 1e3)))
            if not there:
                return None
            t_recv = time.monotonic_ns()
            return RawFrame(
                # A copy, since librealsense reuses its buffers.
                image=self._image(np.asanyarray(frame.get_data())),
                number=frame.get_frame_number(),
                t_device=round(frame.get_timestamp() * MS) - _since_mid_exposure(frame),
                t_recv=t_recv,
                clock=_CLOCKS[frame.get_frame_timestamp_domain()],
            )
        except RuntimeError as error:
            raise CameraError(f"librealsense: {error}") from error

    def close(self) -> None:
        if not self._streaming:
            return
        self._streaming = False
        try:
            self._sensor.stop()
            self._sensor.close()
        except RuntimeError as error:
            raise CameraError(f"librealsense: {error}") from error

    def _find(self) -> Any:
        self._context = self._context or rs.context()
        serial = rs.camera_info.serial_number
        found = {
            device.get_info(serial): device for device in self._context.devices if device.supports(serial)
        }
        if self._spec.serial not in found:
            there = ", ".join(sorted(found)) or "none"
            raise CameraError(
                f"no RealSense with serial {self._spec.serial!r} is connected (found: {there}); "
                "check its cable, or the serial in the robot's configuration"
            )
        return found[self._spec.serial]

    def _choose(self, device: Any) -> tuple[Any, Any]:
        """Find the sensor with the configured stream, and the stream's profile."""
        spec = self._spec
        wanted = (*_STREAMS[self._source.stream], spec.width, spec.height, spec.rate)
        others = set()
        for sensor in device.query_sensors():
            for profile in sensor.get_stream_profiles():
                if not profile.is_video_stream_profile():
                    continue
                video = profile.as_video_stream_profile()
                size = (video.width(), video.height(), video.fps())
                if (profile.stream_type(), profile.format(), *size) == wanted:
                    return sensor, profile
                if (profile.stream_type(), profile.format()) == wanted[:2]:
                    others.add(size)
        modes = ", ".join(f"{width}x{height}@{fps}" for width, height, fps in sorted(others)) or "none"
        raise WrongCamera(
            f"RealSense {spec.serial} has no {self._source.stream} stream of "
            f"{spec.width}x{spec.height}@{spec.rate:g}; it has {modes}. For smaller images give one of these "
            "as capture: [width, height]"
        )

    def _image(self, data: np.ndarray) -> np.ndarray:
        if self._source.stream == "color" or self._depth_mm == 1.0:
            return data.copy()
        return np.clip(np.rint(data * self._depth_mm), 0, np.iinfo(np.uint16).max).astype(np.uint16)


def _since_mid_exposure(frame: Any) -> int:
    """Time from mid-exposure to the frame's time stamp, ns; 0 if the device does not report it."""
    if not all(frame.supports_frame_metadata(value) for value in _METADATA):
        return 0
    stamped, exposed = (frame.get_frame_metadata(value) for value in _METADATA)
    return (stamped - exposed) * 1000
