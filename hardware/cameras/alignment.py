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
    offset_ns: Mapping[str, int]
    """Distance of each image from `t`."""


def newest_aligned(
    frames: FrameReader, latency_ns: Mapping[str, int], since: int = 0, timeout: float = 0.0
) -> AlignedImages:
    """Return the newest time that all cameras have captured, with each camera's nearest image.

    Args:
        frames: reader of these cameras.
        latency_ns: delay of each camera's time stamps behind the scene.
        since: oldest acceptable time on the server's clock, ns.
        timeout: how long to wait for each camera, s.

    Raises:
        StaleFrame: if a camera has no image that is new enough.
    """
    t = min(frames.captured(name, since + latency, timeout) - latency for name, latency in latency_ns.items())
    images = {
        name: frames.nearest(name, t + latency, since + latency) for name, latency in latency_ns.items()
    }
    offset_ns = {name: abs(images[name].t_capture - latency - t) for name, latency in latency_ns.items()}
    return AlignedImages(t, images, offset_ns)
