"""Speed benchmarks. Candidates take turns in one process, so that noise affects them equally."""

import robot_rl.envs  # noqa: F401  # before robosuite, to silence its import warnings
