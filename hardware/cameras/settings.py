"""What a camera is and what the server expects of it."""

from typing import Annotated, ClassVar, Literal

import msgspec

from robot_rl.hardware.protocol.arrays import MAX_IMAGE, MAX_SIDE, CameraName
from robot_rl.hardware.spec import CameraSpec

Encoding = Literal["raw", "jpeg", "png"]
MS = Annotated[float, msgspec.Meta(gt=0)]
Factory = Annotated[str, msgspec.Meta(pattern=r"^[\w.]+:\w+$")]
"""`package.module:function`, or a class there."""


class RealSense(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="realsense"):
    """A RealSense camera; its serial is the one that `rs-enumerate-devices -s` prints."""

    noisy: ClassVar[bool] = True
    stream: Literal["color", "depth"] = "color"


class OpenCV(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="opencv"):
    """A USB camera or a video file; its serial is its name in `folder`."""

    noisy: ClassVar[bool] = True
    folder: str = "/dev/v4l/by-id"
    """`/dev/v4l/by-path` tells cameras without a serial number apart by the port they are in."""
    fourcc: Annotated[str, msgspec.Meta(min_length=4, max_length=4)] = "MJPG"
    """Pixel format on the bus; uncompressed (`YUYV`) takes some ten times the bandwidth."""


class Sim(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="sim"):
    """A camera of a MuJoCo scene; its serial is its name there."""

    noisy: ClassVar[bool] = False
    scene: str
    """Path of the MJCF file, or of MuJoCo's binary model (`.mjb`)."""
    feed: str
    """Endpoint where the simulated arm publishes what is to be seen (`feed.py`)."""
    drawing: Factory = "robot_rl.hardware.cameras.sim:Plain"
    """Renderer factory: called with model, data, camera name, height and width; returns a `SceneRenderer`."""


class Custom(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="custom"):
    """Any other camera: `factory(spec, **options)` gives its `CameraDevice`."""

    noisy: ClassVar[bool] = True
    factory: Factory
    """`package.module:function`, of an installed package or one on PYTHONPATH."""
    options: dict[str, str | int | float | bool] = {}


Source = RealSense | OpenCV | Sim | Custom
"""`noisy` ones never give the same image twice, unless they are frozen."""


class CameraSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One camera of the server's."""

    spec: CameraSpec
    source: Source
    encoding: Encoding | None = None
    """How images are published and recorded: `jpeg` is lossy; `png` and `raw` are exact. None for `png` of
    what is drawn, `raw` of depths, and `jpeg` of all else."""
    jpeg_quality: Annotated[int, msgspec.Meta(ge=1, le=100)] = 90

    def __post_init__(self) -> None:
        spec = self.spec
        msgspec.convert(spec.name, CameraName)
        sides = 0 < spec.width <= MAX_SIDE and 0 < spec.height <= MAX_SIDE
        if not (sides and spec.rate > 0 and 3 * spec.width * spec.height <= MAX_IMAGE):
            raise ValueError(f"camera {spec.name}: {spec.width}x{spec.height}@{spec.rate:g} is not possible")
        if not spec.serial:
            raise ValueError(f"camera {spec.name} needs a serial: any other camera could be taken for it")
        if self.encoding in ("jpeg", "png") and self._measures_depth:
            raise ValueError(
                f"camera {spec.name}: a {self.encoding.upper()} holds no depth; write encoding raw"
            )

    @property
    def published(self) -> Encoding:
        """How images are published, where `encoding` leaves it open too."""
        if self.encoding is not None:
            return self.encoding
        if self._measures_depth:
            return "raw"
        # Drawn images compress well, and an exact one is what an environment observes.
        return "jpeg" if self.source.noisy else "png"

    @property
    def _measures_depth(self) -> bool:
        return isinstance(self.source, RealSense) and self.source.stream == "depth"


class MonitorLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the server puts up with."""

    start_ms: MS = 15_000
    """Longest time from the start of a camera's process to its first frame."""
    stall_ms: MS = 1_000
    """Longest time without a new frame, and never below five periods."""
    frozen_after: Annotated[int, msgspec.Meta(ge=2)] = 10
    """Equal images in a row that make a noisy camera a frozen one."""
    min_rate: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.8
    """Part of the nominal rate below which a camera is slow."""
    rate_window_ms: MS = 2_000
    """Over which the rate is measured."""
    restarts: Annotated[int, msgspec.Meta(ge=0)] = 3
    """Within `restart_window_ms`; a camera that needs more has failed."""
    restart_window_ms: MS = 60_000
    backoff_ms: MS = 1_000
    """Wait before the first restart of a window; each further one waits twice as long."""
