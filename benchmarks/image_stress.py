"""Draw in many threads at once for a while: whether the OpenGL driver of this machine stands it.

MUJOCO_GL=egl python benchmarks/image_stress.py 3600: for an hour. Some threads draw pictures, others do
nothing but read images back; threads end and begin, and contexts are made, moved and freed meanwhile. A
driver that does not stand it takes the process with it; the stacks of all threads are then on stderr. A
loaded machine, or two of these beside each other, makes that likelier.
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
"""Images after which a thread ends and its successor begins; how often one is read."""
SCENES = 12


class Stress:
    """The threads' work, and how often it was done."""

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        self._model, self._data = model, data
        self.done = {"drawn": 0, "read": 0, "made": 0}

    def draw(self, rng: np.random.Generator) -> None:
        """Pictures of several cameras, each with other things in it."""
        scenes = [self._scene(rng, camera % self._model.ncam) for camera in range(SCENES)]
        offscreen = Offscreen(self._model, SIZE, SIZE, quick=True)
        for _ in range(IMAGES):
            offscreen.draw(scenes[rng.integers(SCENES)])
            self.done["drawn"] += 1
        offscreen.close()

    def read(self, _: np.random.Generator) -> None:
        """Read back a corner, which is where a driver looks at all that is drawn."""
        corner, pixels = mujoco.MjrRect(0, 0, 2, 2), np.empty((2, 2, 3), np.uint8)
        offscreen = Offscreen(self._model, SIZE, SIZE, quick=True)
        for _ in range(IMAGES):
            with offscreen._borrowed() as context:
                for _ in range(READS):
                    mujoco.mjr_readPixels(pixels, None, corner, context)
            self.done["read"] += READS
            time.sleep(0.002)  # else this one has the lock, or the GIL, all the time
        offscreen.close()

    def make(self, rng: np.random.Generator) -> None:
        """A context that nobody shares, and its end."""
        size = int(rng.integers(8, SIZE))
        offscreen = Offscreen(self._model, size, size, quick=True)
        offscreen.draw(self._scene(rng, 0))
        offscreen.close()
        self.done["made"] += 1
        time.sleep(5.0)

    def _scene(self, rng: np.random.Generator, camera: int) -> mujoco.MjvScene:
        seen = mujoco.MjvCamera()
        seen.type, seen.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, camera
        scene = mujoco.MjvScene(self._model, 1000)
        scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        options, everything = mujoco.MjvOption(), mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self._model, self._data, options, mujoco.MjvPerturb(), seen, everything, scene)
        share = rng.random()
        for geom in scene.geoms[: scene.ngeom]:
            if rng.random() > share:
                geom.type = int(mujoco.mjtGeom.mjGEOM_LABEL)
        return scene


def main(seconds: float) -> None:
    """Draw for so long; a thread that fails ends it."""
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
