"""`python -m robot_rl` is `robot-rl`."""

import sys
from pathlib import Path

# Run as a file, with `python -P …/robot_rl/__main__.py`, the package has to be found too.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from robot_rl.cli.main import main

sys.exit(main())
