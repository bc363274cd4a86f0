"""Collects episodes that continue after success, as a person's do, to train a success classifier.

    MUJOCO_GL=egl python benchmarks/held_success.py data/lift_held.zarr lift 60 20

collects 60 episodes of the task with 20 steps after the first success each. The scripted expert errs as with
`robot-rl collect skill=0.5 noise=0.3`. Episodes whose success does not last are left out, because some of
their frames show success and their end does not.
"""

import itertools
import sys
from pathlib import Path

import numpy as np

from robot_rl.cli.compose import load_group
from robot_rl.data.expert_episodes import collect_episode
from robot_rl.data.writer import DatasetWriter
from robot_rl.envs.experts import make_expert
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.envs.task import TaskConfig
from robot_rl.rollout import episode_seed

NOISE, SKILL, SEED = 0.3, 0.5, 0
CAMERAS = ("agentview", "robot0_eye_in_hand")


class HeldSuccess:
    """Success that counts once the task's check has held for more than `steps` consecutive steps."""

    def __init__(self, env: RobosuiteEnv, steps: int) -> None:
        self._check, self._steps = env.sim._check_success, steps
        self._held = self._seen = 0
        env.sim.reward = lambda action: float(self())

    def __call__(self) -> bool:
        now = self._check()
        self._held = self._held + 1 if now else 0
        self._seen += now
        return self._held > self._steps

    @property
    def lasted(self) -> bool:
        """Whether every step with success belongs to the one that held."""
        return self._seen == (self._held if self._held > self._steps else 0)

    def begin(self) -> None:
        """Reset for a new episode."""
        self._held = self._seen = 0


def main(path: Path, task: str, episodes: int, steps: int) -> None:
    """Collect `episodes` episodes of a task."""
    config = load_group("task", task, TaskConfig)
    config.cameras = list(CAMERAS)
    config.horizon += steps
    if path.exists():
        # Episodes that were left out are not counted, so that it cannot be continued.
        sys.exit(f"{path} exists: choose another path")
    env = RobosuiteEnv(config, observe_all=True)
    held = HeldSuccess(env, steps)
    settings = {"expert": task, "noise": NOISE, "skill": SKILL, "seed": SEED, "held": steps}
    writer = DatasetWriter(path, env.describe(), settings)
    for index in itertools.count():
        if writer.num_episodes >= episodes:
            break
        seed = episode_seed(SEED, "collect", index)
        expert = make_expert(config.env, noise=NOISE, skill=SKILL, rng=np.random.default_rng(seed))
        held.begin()
        episode, success = collect_episode(env, expert, seed)
        if held.lasted:
            writer.append(episode, success=success, seed=seed)
            print(f"{writer.num_episodes}/{episodes}: {'success' if success else 'failure'}", flush=True)
    env.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
