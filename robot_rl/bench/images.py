"""An image of 84×84 pixels as robosuite makes it and as we do."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from robot_rl.bench.clock import take_turns
from robot_rl.envs.renderer import Renderer

CAMERA = "agentview"
SIZE = 84

_BLOCK = 3
"""Images in one turn: a turn begins with another GL context, and its first image pays for it."""


def measure_images(stock: Any, ours: Any, seconds: float) -> dict[str, float]:
    """Milliseconds of one image: `render_stock_ms` and `render_ours_ms`.

    Args:
        stock: a robosuite environment that observes the camera.
        ours: one of the same task.
        seconds: about how long to measure.
    """
    with _renderer(ours) as renderer:
        draw = {"render_stock_ms": _stock(stock), "render_ours_ms": renderer.frame}
        # robosuite takes for granted that its context is current.
        before = {"render_stock_ms": stock.sim._render_context_offscreen.gl_ctx.make_current}
        take_turns(draw, 0.0, before=before, least=1)  # what is made at first use shall not count
        return take_turns(draw, seconds, before=before, block=_BLOCK)


def _stock(env: Any) -> Callable[[], np.ndarray]:
    """The sensor of robosuite's own camera observation."""
    sensor = env._observables[f"{CAMERA}_image"]._sensor
    return lambda: sensor(env._obs_cache)


def _renderer(env: Any) -> Renderer:
    # It wants an environment of ours, for its task's name.
    ours: Any = SimpleNamespace(sim=env, task=SimpleNamespace(name=type(env).__name__))
    return Renderer(ours, CAMERA, SIZE, SIZE, quick=True)
