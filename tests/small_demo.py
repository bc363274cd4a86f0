"""A plugin: makes small what `robot-rl demo` has no options for, the warm-up of critics and the videos."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from robot_rl.commands import demo
from robot_rl.evaluation import videos

EVERY = 20
"""Of so many states of an episode, one is drawn."""

stage_commands, render_states = demo.stage_commands, videos.render_states


def quick_stages(config: demo.Config) -> dict[str, list[str]]:
    commands = stage_commands(config)
    commands["tuned"].append("method.critic_warmup=20")
    return commands


def few_frames(env: Any, states: Sequence[np.ndarray], *camera_and_size: Any) -> Iterator[np.ndarray]:
    return render_states(env, states[::EVERY], *camera_and_size)


demo.stage_commands = quick_stages
videos.render_states = few_frames
