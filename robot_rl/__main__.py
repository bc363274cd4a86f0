"""`python -m robot_rl` is `robot-rl`."""

import sys
from pathlib import Path

# `python -m` puts the current folder first, where a folder named `envs` would hide ours.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from robot_rl.cli.main import main

sys.exit(main())
