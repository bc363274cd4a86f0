"""Bit-identical replacement of LAPACK on small matrices; optional, see README.md in this folder."""

from robot_rl.envs.compiled.lapack.small_matrices import SMALL_SCRATCH, small_torque
from robot_rl.envs.compiled.lapack.verify import bit_identical

__all__ = ["SMALL_SCRATCH", "bit_identical", "small_torque"]
