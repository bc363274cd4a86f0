"""Evaluation draws the cameras only for frames that a decision reads."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.cli.compose import load_group
from robot_rl.envs.task import TaskConfig
from robot_rl.envs.vector import TaskVectorEnv
from robot_rl.evaluation.evaluate import evaluate
from robot_rl.factory import make_vector_env
from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.bases.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.policies.chunk_runner import PolicyOutput


class Watched(ActingPolicy):
    """Keeps its actions, and in which frames an image was drawn."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.actions: list[np.ndarray] = []
        self.drawn: list[bool] = []

    def act(self, frames: Any, **options: Any) -> PolicyOutput:
        made = super().act(frames, **options)
        self.actions.append(made.action)
        seen = [bool(image.any()) for image in frames["images.agentview"]]
        assert len(set(seen)) == 1
        self.drawn.append(seen[0])
        return made


@pytest.mark.parametrize(("obs_steps", "drawn"), [(1, [0, 4, 8]), (2, [0, 3, 4, 7, 8])])
def test_only_frames_that_a_decision_reads_are_drawn(
    obs_steps: int, drawn: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = load_group("task", "lift_image", TaskConfig)
    envs = make_vector_env(replace(task, cameras=["agentview"], image_size=[16, 16], horizon=10), 2)
    torch.manual_seed(0)
    config = DiffusionConfig(obs_steps=obs_steps, width=16, depth=1, train_steps=4, inference_steps=2)
    base = DiffusionPolicy(config, envs.observation_spec.state_size, 7, ("agentview",), (16, 16))
    envs.reset(seed=0)
    states = np.stack(envs.get_states())

    def run() -> Watched:
        policy = Watched(base, 2)
        evaluate(envs, policy, states, seed=0)
        return policy

    saving = run()
    assert np.flatnonzero(saving.drawn).tolist() == drawn
    monkeypatch.setattr(TaskVectorEnv, "draw_next", lambda *_: None)
    always = run()
    assert all(always.drawn)
    np.testing.assert_array_equal(saving.actions, always.actions)
    envs.close()
