"""Stress test of this machine's OpenGL driver: renders in many threads at once.

    MUJOCO_GL=egl python benchmarks/image_stress.py 3600

runs for an hour. Some threads render, others only read images back; threads end and are replaced, and
contexts are created, moved and freed meanwhile. A faulty driver crashes the process, and the stacks of all
threads are then on stderr. Crashes are more likely on a loaded machine or with two of these tests at once.
"""

import sys
import threading
import time
from collections.abc import Callable

import mujoco
import numpy as np

from robot_rl.cli.compose import load_group
from robot_rl.envs.offscreen import Offscreen
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig
from robot_rl.errors import trace_crashes

SIZE = 64
DRAWERS, READERS = 2, 2
IMAGES, READS = 1000, 100
"""Images after which a thread is replaced, and reads per image."""
SCENES = 12


class Stress:
    """Work of the threads, with counters."""

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        self._model, self._data = model, data
        self.done = {"drawn": 0, "read": 0, "made": 0}

    def draw(self, rng: np.random.Generator) -> None:
        """Render several cameras with different sets of objects."""
        scenes = [self._scene(rng, camera % self._model.ncam) for camera in range(SCENES)]
        offscreen = Offscreen(self._model, SIZE, SIZE, quick=True)
        for _ in range(IMAGES):
            offscreen.draw(scenes[rng.integers(SCENES)])
            self.done["drawn"] += 1
        offscreen.close()

    def read(self, _: np.random.Generator) -> None:
        """Read back one corner of the image, which makes the driver finish the frame."""
        corner, pixels = mujoco.MjrRect(0, 0, 2, 2), np.empty((2, 2, 3), np.uint8)
        offscreen = Offscreen(self._model, SIZE, SIZE, quick=True)
        for _image in range(IMAGES):
            with offscreen._borrowed() as context:
                for _read in range(READS):
                    mujoco.mjr_readPixels(pixels, None, corner, context)
            self.done["read"] += READS
            time.sleep(0.002)  # otherwise this thread holds the lock or the GIL all the time
        offscreen.close()

    def make(self, rng: np.random.Generator) -> None:
        """Create and free a context of another size."""
        size = int(rng.integers(8, SIZE))
        offscreen = Offscreen(self._model, size, size, quick=True)
        offscreen.draw(self._scene(rng, 0))
        offscreen.close()
        self.done["made"] += 1
        time.sleep(5.0)

    def _scene(self, rng: np.random.Generator, camera: int) -> mujoco.MjvScene:
        view = mujoco.MjvCamera()
        view.type, view.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, camera
        scene = mujoco.MjvScene(self._model, 1000)
        scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        options, everything = mujoco.MjvOption(), mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self._model, self._data, options, mujoco.MjvPerturb(), view, everything, scene)
        share = rng.random()
        for geom in scene.geoms[: scene.ngeom]:
            if rng.random() > share:
                geom.type = int(mujoco.mjtGeom.mjGEOM_LABEL)
        return scene


def main(seconds: float) -> None:
    """Run for so many seconds, or until a thread fails."""
    trace_crashes()
    env = RobosuiteEnv(load_group("task", "lift", TaskConfig))
    env.reset(seed=0)
    stress = Stress(env.sim.sim.model._model, env.sim.sim.data._data)
    end = time.monotonic() + seconds
    failed: list[BaseException] = []

    def again(work: Callable[[np.random.Generator], None], rng: np.random.Generator) -> None:
        def once() -> None:
            try:
                work(rng)
            except BaseException as error:
                failed.append(error)

        while time.monotonic() < end and not failed:
            thread = threading.Thread(target=once)
            thread.start()
            thread.join()

    works = [*[stress.draw] * DRAWERS, *[stress.read] * READERS, stress.make]
    threads = [
        threading.Thread(target=again, args=(work, np.random.default_rng(seed)))
        for seed, work in enumerate(works)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    env.close()
    if failed:
        raise failed[0]
    print(*(f"{number} {what}" for what, number in stress.done.items()), sep=", ")


if __name__ == "__main__":
    main(float(sys.argv[1]))
