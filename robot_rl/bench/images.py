"""Rendering time of an 84×84 image with robosuite's renderer and with ours."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from robot_rl.bench.clock import take_turns
from robot_rl.envs.renderer import EnvCameraRenderer

CAMERA = "agentview"
SIZE = 84

_BLOCK = 3
"""Images in one turn: the first of a turn includes the switch of the GL context."""


def measure_images(stock: Any, ours: Any, seconds: float) -> dict[str, float]:
    """Rendering time of one image in ms: `render_stock_ms` and `render_ours_ms`.

    Args:
        stock: a robosuite environment that observes the camera.
        ours: another environment of the same task.
        seconds: approximate duration of the measurement in s.
    """
    with _renderer(ours) as renderer:
        draw = {"render_stock_ms": _stock(stock), "render_ours_ms": renderer.frame}
        # robosuite assumes that its context is current.
        before = {"render_stock_ms": stock.sim._render_context_offscreen.gl_ctx.make_current}
        take_turns(draw, 0.0, before=before, least=1)  # warm-up: first use initialises caches
        return take_turns(draw, seconds, before=before, block=_BLOCK)


def _stock(env: Any) -> Callable[[], np.ndarray]:
    """The sensor of robosuite's camera observation."""
    sensor = env._observables[f"{CAMERA}_image"]._sensor
    return lambda: sensor(env._obs_cache)


def _renderer(env: Any) -> EnvCameraRenderer:
    # It needs an environment of ours, for the name of its task.
    ours: Any = SimpleNamespace(sim=env, task=SimpleNamespace(name=type(env).__name__))
    return EnvCameraRenderer(ours, CAMERA, SIZE, SIZE, quick=True)
