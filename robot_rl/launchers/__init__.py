"""Where the commands of a sweep or benchmark run: on this machine, a Ray cluster or a SLURM cluster."""

from collections.abc import Sequence

from robot_rl.errors import UserError
from robot_rl.launchers.launcher import Launcher
from robot_rl.launchers.local import LocalLauncher
from robot_rl.launchers.slurm import SlurmLauncher

LAUNCHERS = ("local", "ray", "slurm")


def make_launcher(name: str, device: str, keep_open: Sequence[int] = ()) -> Launcher:
    """Make the launcher of this name.

    Args:
        name: `local`, `ray` or `slurm`.
        device: what the commands ask for; on a cluster, `cuda` reserves one GPU for each.
        keep_open: file descriptors that all commands on this machine inherit.

    Raises:
        UserError: if there is no such launcher, or its cluster cannot be used.
    """
    check_launcher(name)
    if name == "local":
        return LocalLauncher(keep_open)
    if name == "ray":
        from robot_rl.launchers.ray_cluster import RayLauncher

        return RayLauncher(gpus=int(device.startswith("cuda")))
    return SlurmLauncher(gpus=int(device.startswith("cuda")))


def check_launcher(name: str) -> None:
    """Raises UserError if there is no launcher of this name."""
    if name not in LAUNCHERS:
        raise UserError(f"launcher={name}: choose {', '.join(LAUNCHERS)}")
