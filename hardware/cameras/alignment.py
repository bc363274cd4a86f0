"""Images of several cameras that show the same moment."""

from collections.abc import Mapping
from dataclasses import dataclass

from robot_rl.hardware.cameras.reader import CameraImage, FrameReader


@dataclass(frozen=True)
class AlignedImages:
    """What the cameras saw at about one time."""

    t: int
    """On the server's clock, ns."""
    seen: Mapping[str, CameraImage]
    """An image of each camera."""
    off: Mapping[str, int]
    """How far each of them is from `t`, ns."""


def newest_aligned(
    frames: FrameReader, late: Mapping[str, int], since: int = 0, timeout: float = 0.0
) -> AlignedImages:
    """The newest moment that all cameras have seen, and of each the image nearest to it.

    Args:
        frames: of these cameras.
        late: by camera, how much later than what it shows an image's time stamp is, ns.
        since: nothing older will do, on the server's clock, ns.
        timeout: how long to wait for each camera, s.

    Raises:
        StaleFrame: a camera has no image that is new enough.
    """
    t = min(frames.captured(camera, since + after, timeout) - after for camera, after in late.items())
    seen = {camera: frames.nearest(camera, t + after, since + after) for camera, after in late.items()}
    off = {camera: abs(seen[camera].t_capture - after - t) for camera, after in late.items()}
    return AlignedImages(t, seen, off)
