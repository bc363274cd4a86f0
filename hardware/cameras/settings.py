"""Settings of cameras and of their monitoring."""

from typing import Annotated, ClassVar, Literal

import msgspec

from robot_rl.hardware.protocol.arrays import MAX_IMAGE, MAX_SIDE, CameraName
from robot_rl.hardware.spec import CameraSpec

Encoding = Literal["raw", "jpeg", "png"]
MS = Annotated[float, msgspec.Meta(gt=0)]
Factory = Annotated[str, msgspec.Meta(pattern=r"^[\w.]+:\w+$")]
"""`package.module:function`, or a class."""


class RealSense(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="realsense"):
    """A RealSense camera; its serial is printed by `rs-enumerate-devices -s`."""

    noisy: ClassVar[bool] = True
    stream: Literal["color", "depth"] = "color"


class OpenCV(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="opencv"):
    """A USB camera or a video file; its serial is its name in `folder`."""

    noisy: ClassVar[bool] = True
    folder: str = "/dev/v4l/by-id"
    """`/dev/v4l/by-path` identifies cameras without a serial number by their port."""
    fourcc: Annotated[str, msgspec.Meta(min_length=4, max_length=4)] = "MJPG"
    """Pixel format on the bus; uncompressed (`YUYV`) needs about ten times the bandwidth."""


class Sim(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="sim"):
    """A camera of a MuJoCo scene; its serial is its name in the scene."""

    noisy: ClassVar[bool] = False
    scene: str
    """Path of the MJCF file or binary model (`.mjb`)."""
    feed: str
    """Endpoint where the simulated arm publishes the scene's state (`simulated_scene.py`)."""
    drawing: Factory = "robot_rl.hardware.cameras.sim:Plain"
    """Renderer factory: called with model, data, camera name, height and width; returns a `SceneRenderer`."""


class Custom(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="custom"):
    """Any other camera: `factory(spec, **options)` returns its `CameraDevice`."""

    noisy: ClassVar[bool] = True
    factory: Factory
    """`package.module:function` of an installed package or one on PYTHONPATH."""
    options: dict[str, str | int | float | bool] = {}


Source = RealSense | OpenCV | Sim | Custom
"""Images of `noisy` cameras always differ, so equal ones mean that the camera is frozen."""


class CameraSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One camera of the server."""

    spec: CameraSpec
    source: Source
    encoding: Encoding | None = None
    """Encoding of published and recorded images: `jpeg` is lossy, `png` and `raw` are lossless. None selects
    `png` for rendered images, `raw` for depth and `jpeg` otherwise."""
    jpeg_quality: Annotated[int, msgspec.Meta(ge=1, le=100)] = 90
    capture: tuple[int, int] | None = None
    """Width and height of the device's images, if smaller ones are published: the largest part of the same
    shape as `spec` in the middle of each is scaled down. None if they are those of `spec`."""

    def __post_init__(self) -> None:
        spec = self.spec
        msgspec.convert(spec.name, CameraName)
        sides = 0 < spec.width <= MAX_SIDE and 0 < spec.height <= MAX_SIDE
        if not (sides and spec.rate > 0 and 3 * spec.width * spec.height <= MAX_IMAGE):
            raise ValueError(f"camera {spec.name}: {spec.width}x{spec.height}@{spec.rate:g} is not possible")
        if self.capture is not None:
            width, height = self.capture
            if not (spec.width <= width <= MAX_SIDE and spec.height <= height <= MAX_SIDE):
                raise ValueError(
                    f"camera {spec.name}: images of {width}x{height} cannot be scaled down to "
                    f"{spec.width}x{spec.height}; correct capture"
                )
            if self._measures_depth:
                raise ValueError(f"camera {spec.name}: depth is not scaled; leave capture out")
        if not spec.serial:
            raise ValueError(f"camera {spec.name} needs a serial, to tell it from other cameras")
        if self.encoding in ("jpeg", "png") and self._measures_depth:
            raise ValueError(
                f"camera {spec.name}: {self.encoding.upper()} cannot hold depth; set encoding: raw"
            )

    @property
    def device_spec(self) -> CameraSpec:
        """`spec` with the size of the device's images."""
        width, height = self.capture or (self.spec.width, self.spec.height)
        return msgspec.structs.replace(self.spec, width=width, height=height)

    @property
    def resolved_encoding(self) -> Encoding:
        """Encoding of published images, with the default resolved."""
        if self.encoding is not None:
            return self.encoding
        if self._measures_depth:
            return "raw"
        # Rendered images compress well, and simulated environments observe exact images.
        return "jpeg" if self.source.noisy else "png"

    @property
    def _measures_depth(self) -> bool:
        return isinstance(self.source, RealSense) and self.source.stream == "depth"


class MonitorLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits of camera monitoring."""

    start_ms: MS = 15_000
    """Longest time from the start of a camera process to its first image."""
    stall_ms: MS = 1_000
    """Longest time without a new image; at least five periods."""
    frozen_after: Annotated[int, msgspec.Meta(ge=2)] = 10
    """A noisy camera with this many equal images in a row is frozen."""
    min_rate: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.8
    """Fraction of the nominal rate below which a camera is slow."""
    rate_window_ms: MS = 2_000
    """Window of the rate measurement."""
    restarts: Annotated[int, msgspec.Meta(ge=0)] = 3
    """Largest number of restarts within `restart_window_ms`; after that the camera has failed."""
    restart_window_ms: MS = 60_000
    backoff_ms: MS = 1_000
    """Wait before the first restart of a window; doubled for each further one."""


def default_limits(source: Source) -> MonitorLimits:
    """Limits for a camera with this source.

    A process that draws a scene waits for no device, but on a busy machine its libraries take long to load.
    """
    return MonitorLimits(start_ms=60_000) if isinstance(source, Sim) else MonitorLimits()
