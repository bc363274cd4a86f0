"""Measurements of speed. What is compared takes turns in one process, so that noise hits all alike."""

import robot_rl.envs  # noqa: F401  # before robosuite, whose warnings at its import it silences
