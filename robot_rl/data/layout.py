"""Datasets on disk: a zarr group that diffusion_policy's and UMI's readers open as it is.

    data/<raw observation>   [T, …]   raw observations by the environment's names
    data/action              [T, A]   what was requested
    data/applied_action      [T, A]   what the environment executed
    data/sim_state           [T, K]   full simulator state before the step, where a simulator made it
    data/reward, data/terminated, data/truncated   [T]
    meta/episode_ends        [N]      int64, one past each episode's last step
    meta/episode_success, meta/episode_seed        [N]
    meta attributes: format version, the environment that made it, how it was collected
    videos/<camera>/<episode>.mp4     images of a camera, where they are not in data/images.<camera>

Format 2 of zarr, since those readers are older than format 3. An episode counts once its end
is in `episode_ends`, which is written last: rows after it are left over from a writer that was
killed, and opening for writing cuts them off. Each file of it appears by rename, and chunks that
hold nothing but zeros are written too, so that a chunk that is missing is known to be lost.
"""

from collections.abc import Mapping
from typing import Any

FORMAT_VERSION = 1
EPISODE_KEYS = {"episode_ends": "i8", "episode_success": "?", "episode_seed": "i8"}
STEP_KEYS = ("action", "applied_action", "sim_state", "reward", "terminated", "truncated")


def required_keys(collection: Mapping[str, Any]) -> tuple[str, ...]:
    """What every episode has; one that no simulator of ours made has no simulator's state."""
    stateless = "recorded" in collection or not collection.get("states", True)
    return tuple(key for key in STEP_KEYS if key != "sim_state" or not stateless)
