"""Time-aligned images of several cameras."""

from collections.abc import Mapping
from dataclasses import dataclass

from robot_rl.hardware.cameras.reader import CameraImage, FrameReader


@dataclass(frozen=True)
class AlignedImages:
    """One image per camera, captured at about the same time."""

    t: int
    """Common capture time on the server's clock, ns."""
    images: Mapping[str, CameraImage]
    """Image of each camera."""
    off: Mapping[str, int]
    """Distance of each image from `t`, ns."""


def newest_aligned(
    frames: FrameReader, late: Mapping[str, int], since: int = 0, timeout: float = 0.0
) -> AlignedImages:
    """Return the newest time that all cameras have captured, with each camera's nearest image.

    Args:
        frames: reader of these cameras.
        late: delay of each camera's time stamps behind the scene, ns.
        since: oldest acceptable time on the server's clock, ns.
        timeout: how long to wait for each camera, s.

    Raises:
        StaleFrame: if a camera has no image that is new enough.
    """
    t = min(frames.captured(camera, since + after, timeout) - after for camera, after in late.items())
    images = {camera: frames.nearest(camera, t + after, since + after) for camera, after in late.items()}
    off = {camera: abs(images[camera].t_capture - after - t) for camera, after in late.items()}
    return AlignedImages(t, images, off)
