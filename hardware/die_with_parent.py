"""Runs a command that the kernel kills when its parent dies.

Usage: `die_with_parent.py <parent's process id> <command…>`.
"""

import os
import sys

from robot_rl.hardware.child_process import kill_with_parent

if __name__ == "__main__":
    kill_with_parent(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
