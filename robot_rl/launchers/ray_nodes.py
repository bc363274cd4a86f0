"""Connects to a Ray cluster (docs.ray.io), all of whose nodes must have the software of this machine."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from robot_rl import __version__
from robot_rl.errors import UserError
from robot_rl.graphics import choose_backend
from robot_rl.launchers.software import check_software, installed_software

_CHECK = 300.0
"""s for a node to say what it has; its first Python process has to start, on a busy machine too."""


def connect(option: str, folder: str | None = None) -> ModuleType:
    """Connect to the cluster that `RAY_ADDRESS` names, or else to that of this machine, and check its nodes.

    Args:
        option: what asks for the cluster, for messages.
        folder: folder that all nodes must see under this path; None for none.

    Returns:
        The module `ray`, connected; its `shutdown` disconnects.

    Raises:
        UserError: if Ray is missing, no cluster answers, or a node has other software.
    """
    try:
        import ray
    except ImportError:
        raise UserError(f"{option} needs Ray: pip install 'ray[tune]'") from None
    address = os.environ.get("RAY_ADDRESS", "auto")
    # Before a worker imports MuJoCo; it inherits the environment of `ray start`, not of this command.
    graphics = {"worker_process_setup_hook": choose_backend}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, runtime_env=graphics)
    except ConnectionError:
        where = "on this machine" if address == "auto" else f"at RAY_ADDRESS={address}"
        raise UserError(f"no Ray cluster answers {where}; `ray start --head` starts one") from None
    except (RuntimeError, ValueError) as error:
        # Another version of Ray or of Python, or a malformed address.
        raise UserError(f"Ray does not connect ({address}): {str(error).strip().splitlines()[0]}") from error
    try:
        _check_nodes(ray, folder)
    except BaseException:
        ray.shutdown()
        raise
    return ray


def _check_nodes(ray: ModuleType, folder: str | None) -> None:
    check = ray.remote(num_cpus=0, max_retries=0)(_check_node)
    answers = {}
    for node in ray.nodes():
        if node["Alive"]:
            place = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            name = f"Ray node {node['NodeManagerAddress']} ({node['NodeID'][:8]})"
            asked = check.options(scheduling_strategy=place)
            answers[name] = asked.remote(installed_software(), folder, name)
    for name, answer in answers.items():
        try:
            problem = ray.get(answer, timeout=_CHECK)
        except ray.exceptions.OutOfMemoryError as error:
            raise UserError(f"{name} has hardly any memory left: end other programs there") from error
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1]
            raise UserError(f"{name} cannot run robot-rl {__version__}: {reason}") from error
        if problem:
            raise UserError(problem)


def _check_node(wanted: Mapping[str, str], folder: str | None, name: str) -> str:
    """What is wrong with this node; "" if nothing is."""
    try:
        check_software(wanted, name)
    except ValueError as error:
        return str(error)
    missing = folder is not None and not Path(folder).is_dir()
    return f"{name} has no folder {folder}: share it between the nodes" if missing else ""
