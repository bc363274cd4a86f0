"""Choose MuJoCo's OpenGL backend, and test one by rendering a frame in a child process.

MuJoCo loads its backend once per process, when it is imported, and a broken driver may kill the process.
"""

import ctypes
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from robot_rl.hardware.child_process import child_environment

if TYPE_CHECKING:
    import numpy as np

LIBRARIES = {"egl": "libEGL.so.1", "osmesa": "libOSMesa.so.8"}
"""Offscreen backends in order of preference. EGL uses a GPU, and Mesa's software without one."""


def choose_backend() -> None:
    """Set `MUJOCO_GL` to a backend that is installed, unless the user has set it."""
    if os.environ.get("MUJOCO_GL") or sys.platform != "linux":
        return
    for backend, library in LIBRARIES.items():
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        os.environ["MUJOCO_GL"] = backend
        return


_SCENE = """
<mujoco>
  <visual><headlight ambient=".4 .4 .4" diffuse=".5 .5 .5"/></visual>
  <worldbody>
    <light pos="0 0 3"/>
    <camera name="eye" pos="0 -1 1" xyaxes="1 0 0 0 .7 .7"/>
    <geom type="plane" size="3 3 .1" rgba=".2 .3 .5 1"/>
    <geom type="box" pos="0 0 .1" size=".15 .15 .1" rgba=".9 .1 .1 1"/>
  </worldbody>
</mujoco>
"""
"""A red box in the middle of the image, on a blue floor."""

_TIMEOUT = 60.0


@dataclass(frozen=True)
class Trial:
    """Result of rendering a frame with one OpenGL backend."""

    backend: str
    problem: str | None
    """What is wrong, or None."""
    milliseconds: float = 0.0
    """Time to render a frame."""


def try_backend(backend: str) -> Trial:
    """Render the scene with one backend (a value of `MUJOCO_GL`) in a child process."""
    # The child chooses it again: what this process's backend needs may be wrong for the other.
    env = {k: v for k, v in child_environment().items() if k != "PYOPENGL_PLATFORM"}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", "from robot_rl.graphics import draw; draw()"],
            env={**env, "MUJOCO_GL": backend},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Trial(backend, f"no frame after {_TIMEOUT:.0f} s")
    if done.returncode < 0:
        return Trial(backend, f"the process died of signal {-done.returncode}")
    if done.returncode > 0:
        # Closing a context that was never created prints another error after the one that matters.
        error = re.search(r"\w*Error: .*", done.stderr)
        return Trial(backend, error.group() if error else f"exit code {done.returncode}")
    return Trial(backend, **json.loads(done.stdout.splitlines()[-1]))


def draw() -> None:
    """Render the scene in this process and print a `Trial`'s fields as JSON."""
    import mujoco

    model = mujoco.MjModel.from_xml_string(_SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    with mujoco.Renderer(model, 84, 84) as renderer:
        renderer.update_scene(data, "eye")
        renderer.render()
        start = time.perf_counter()
        frame = renderer.render()
        seconds = time.perf_counter() - start
    print(json.dumps({"problem": judge(frame), "milliseconds": 1e3 * seconds}))


def judge(frame: "np.ndarray") -> str | None:
    """What is wrong with a frame of the scene, uint8 [H, W, 3]; None if it is right."""
    pixels = frame.astype(float)
    if pixels.max() < 8:
        return "the frame is black"
    spread = pixels.std()
    if spread < 2:
        return "the frame has one colour"
    steps = abs(pixels[:, 1:] - pixels[:, :-1]).mean()
    # 1.15 for independent pixels, a few hundredths for a rendered image.
    if steps / spread > 0.5:
        return "the frame is noise"
    middle = pixels[pixels.shape[0] // 2, pixels.shape[1] // 2]
    corner = pixels[-1, 0]
    if not (middle[0] > 2 * middle[2] and corner[2] > corner[0]):
        return "the frame shows something else than the scene"
    return None
