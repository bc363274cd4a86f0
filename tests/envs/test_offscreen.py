"""Parallel use of OpenGL, which depends on the driver; a stress test of the driver."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from robot_rl.envs import offscreen
from robot_rl.envs.offscreen import Offscreen

ROOT = Path(__file__).parents[2]
STRESS = ROOT / "benchmarks" / "image_stress.py"
SIZE = 16


def scene(colour: float = 0.5) -> tuple[mujoco.MjModel, mujoco.MjvScene]:
    """A box; models of different colours share no context."""
    asset = f'<asset><material name="paint" rgba="{colour} .5 .5 1"/></asset>'
    body = '<worldbody><light pos="0 0 3"/><geom type="box" size=".1 .1 .1" material="paint"/></worldbody>'
    model = mujoco.MjModel.from_xml_string(f"<mujoco>{asset}{body}</mujoco>")
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    drawn = mujoco.MjvScene(model, 10)
    camera, options, untouched = mujoco.MjvCamera(), mujoco.MjvOption(), mujoco.MjvPerturb()
    mujoco.mjv_updateScene(model, data, options, untouched, camera, mujoco.mjtCatBit.mjCAT_ALL, drawn)
    return model, drawn


DRAWS_THEN_LEARNS = """
import torch
from tests.envs.test_offscreen import SIZE, Offscreen, scene
model, drawn = scene()
print(Offscreen(model, SIZE, SIZE, quick=True).draw(drawn).max())
torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))])
print("has learned")
"""


def test_a_process_that_draws_may_make_an_optimizer() -> None:
    """The CUDA build of torch loads a compiler then, which crashed beside Mesa's."""
    run = subprocess.run([sys.executable, "-c", DRAWS_THEN_LEARNS], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith("has learned\n")


class Busy:
    """How many threads use OpenGL, and the most that ever did."""

    def __init__(self) -> None:
        self._threads: list[int] = []
        self.most = 0

    @contextmanager
    def using(self) -> Iterator[None]:
        self._threads.append(threading.get_ident())
        self.most = max(self.most, len(set(self._threads)))
        time.sleep(0.001)  # so that another thread comes in, if it may
        try:
            yield
        finally:
            self._threads.remove(threading.get_ident())

    def watch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **options: Any) -> Any:
            with self.using():
                return function(*arguments, **options)

        return watched


def test_a_driver_that_draws_alone_is_used_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it draws, reads back, makes a context or frees one."""
    busy = Busy()
    for name in ("MjrContext", "mjr_render", "mjr_readPixels", "mjr_resizeOffscreen"):
        monkeypatch.setattr(mujoco, name, busy.watch(getattr(mujoco, name)))
    monkeypatch.setattr(offscreen._Context, "free", busy.watch(offscreen._Context.free))
    monkeypatch.setattr(offscreen, "_draws_alone", lambda: True)
    box = scene()

    def draw(number: int) -> np.ndarray:
        model, drawn = box if number % 2 else scene(number / 10)
        view = Offscreen(model, SIZE + number, SIZE, quick=True)
        image = [view.draw(drawn) for _ in range(5)][-1]
        view.close()
        return image

    with ThreadPoolExecutor(4) as threads:
        images = list(threads.map(draw, range(8)))
    assert busy.most == 1
    assert all(image.std() > 1 for image in images)


def test_other_drivers_draw_in_several_threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(2, timeout=60.0)
    monkeypatch.setattr(mujoco, "mjr_render", lambda *_: together.wait())
    monkeypatch.setattr(mujoco, "mjr_readPixels", lambda *_: None)
    monkeypatch.setattr(offscreen, "_draws_alone", lambda: False)
    model, drawn = scene(0.9)
    views = [Offscreen(model, SIZE, SIZE, quick=True) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda view: view.draw(drawn), views))
    for view in views:
        view.close()
    assert not together.broken


@pytest.mark.parametrize(
    ("name", "alone"),
    [
        (b"llvmpipe (LLVM 15.0.6, 256 bits)", True),
        (b"softpipe", True),
        (b"Software Rasterizer", True),
        (None, True),
        (b"NVIDIA H200/PCIe/SSE2", False),
        (b"Mesa Intel(R) UHD Graphics 620 (KBL GT2)", False),
    ],
)
def test_renderers_without_a_gpu_draw_alone(
    name: bytes | None, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, drawn = scene()
    view = Offscreen(model, SIZE, SIZE, quick=True)
    view.draw(drawn)  # MuJoCo's backend is chosen by now, and with it that of PyOpenGL
    view.close()
    from OpenGL import GL

    monkeypatch.setattr(GL, "glGetString", lambda which: name if which == GL.GL_RENDERER else b"")
    assert offscreen._draws_alone() is alone


@pytest.mark.full
@pytest.mark.parametrize("backend", ["egl", "osmesa"])
def test_drawing_in_many_threads_lives(backend: str) -> None:
    """Two processes beside each other, for ten minutes or `ROBOT_RL_STRESS_SECONDS`.

    They have a low priority: they would starve the tests beside this one.
    """
    seconds = os.environ.get("ROBOT_RL_STRESS_SECONDS", "600")
    environment = {**os.environ, "MUJOCO_GL": backend, "PYTHONPATH": str(STRESS.parents[1])}
    environment.pop("PYOPENGL_PLATFORM", None)
    processes = [
        subprocess.Popen(
            ["nice", "-n", "19", sys.executable, "-P", str(STRESS), seconds],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert all("drawn" in words for words in said), said
