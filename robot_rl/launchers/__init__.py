"""Where the commands of a sweep or benchmark run: in processes of this machine, or on a Ray cluster."""

from collections.abc import Sequence

from robot_rl.errors import UserError
from robot_rl.launchers.launcher import Launcher
from robot_rl.launchers.local import LocalLauncher

LAUNCHERS = ("local", "ray")


def make_launcher(name: str, device: str, keep_open: Sequence[int] = ()) -> Launcher:
    """Make the launcher of this name.

    Args:
        name: `local` or `ray`.
        device: what the commands ask for; on a cluster, `cuda` reserves one GPU for each.
        keep_open: file descriptors that all commands on this machine inherit.

    Raises:
        UserError: if there is no such launcher, or its cluster cannot be used.
    """
    if name == "local":
        return LocalLauncher(keep_open)
    if name == "ray":
        from robot_rl.launchers.ray_cluster import RayLauncher

        return RayLauncher(gpus=int(device.startswith("cuda")))
    raise UserError(f"launcher={name}: choose {' or '.join(LAUNCHERS)}")
