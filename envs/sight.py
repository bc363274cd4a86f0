"""What a camera cannot see need not be drawn: in software, most of an image's time goes into vertices."""

import mujoco
import numpy as np


def out_of_sight(
    camera: mujoco.MjvGLCamera, aspect: float, model: mujoco.MjModel, data: mujoco.MjData
) -> np.ndarray:
    """Which geoms lie wholly outside of a perspective camera's view, by their bounding boxes; bool [G].

    Args:
        camera: of a scene, as `mjv_updateScene` leaves it.
        aspect: width of the image divided by its height.
    """
    forward, up = camera.forward.astype(float), camera.up.astype(float)
    right = np.cross(forward, up)
    # The four sides of the view, by the slopes of their lines through the camera.
    top, bottom = camera.frustum_top / camera.frustum_near, camera.frustum_bottom / camera.frustum_near
    half, middle = aspect * (top - bottom) / 2, camera.frustum_center / camera.frustum_near
    outward = np.stack(
        [
            up - top * forward,
            bottom * forward - up,
            right - (middle + half) * forward,
            (middle - half) * forward - right,
        ],
        axis=1,
    )
    # Of each box the corner that is furthest in: its distance from a side, [G, 4].
    axes = data.geom_xmat.reshape(-1, 3, 3).transpose(0, 2, 1) @ outward
    centre, size = model.geom_aabb[:, None, :3], model.geom_aabb[:, None, 3:]
    nearest = (data.geom_xpos - camera.pos) @ outward + (centre @ axes - size @ np.abs(axes))[:, 0]
    return (nearest > 0).any(axis=1)
