"""Loads policies from the directories of runs, saved policies and bundles; needs no simulator."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

import robot_rl.policies.classifier
import robot_rl.policies.finetuned  # they register loaders  # noqa: F401
from robot_rl.envs.instruction import known_instructions
from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.asynchronous import AsyncOptions
from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.finetuned.finetuned_policy import FinetunedPolicy
from robot_rl.policies.store import load_policy_files
from robot_rl.policy_client.config import RemoteConfig
from robot_rl.policy_client.remote_base import connect_base
from robot_rl.runs import list_checkpoints
from robot_rl.saved_policies.bundle import is_bundle, read_bundle

EXECUTION: Final = "execution"
"""Where a policy's metadata says how it executed the base's chunks in training, if asynchronously."""


def policy_directory(path: Path) -> Path:
    """The directory of a policy: `path` itself, that of a step in a run, or a run's newest checkpoint's.

    Raises:
        ValueError: if there is no policy, or it is a bundle that was changed.
    """
    if is_bundle(path):
        read_bundle(path)
    if (path / "policy.json").is_file():
        return path
    if (path / "policy" / "policy.json").is_file():
        return path / "policy"
    checkpoints = list_checkpoints(path / "checkpoints")
    if not checkpoints:
        what = "has no checkpoint yet" if path.is_dir() else "does not exist"
        raise ValueError(f"{path} {what}; give the directory of a run or of a policy")
    return checkpoints[-1] / "policy"


def is_server(path: str | Path) -> bool:
    """Whether a policy is given as the address of a server."""
    return str(path).startswith(("ws://", "wss://"))


def load_networks(
    path: str | Path, device: torch.device | None = None
) -> tuple[BasePolicy | FinetunedPolicy, dict[str, Any]]:
    """The networks saved in a run or policy directory, on a device, and their metadata.

    `ws://host:port` or `wss://host:port` is the policy behind a server of `robot-rl serve`; a tuned one
    counts as a base.
    """
    if is_server(path):
        remote = connect_base(RemoteConfig(str(path)), {})
        return remote.to(device or torch.device("cpu")).eval(), {"environment": remote.environment}
    networks, meta = load_policy_files(policy_directory(Path(path)))
    if not isinstance(networks, BasePolicy | FinetunedPolicy):
        raise ValueError(f"{path} holds a {type(networks).__name__}, which does not act")
    return networks.to(device or torch.device("cpu")).eval(), meta


def base_of(networks: BasePolicy | FinetunedPolicy) -> BasePolicy:
    """The base that a tuned policy was trained around, or the base policy itself."""
    return networks.base if isinstance(networks, FinetunedPolicy) else networks


def check_instructions(
    networks: BasePolicy | FinetunedPolicy, task: str, instructions: Sequence[str]
) -> None:
    """Check that a policy can be given the instructions of a task.

    Raises:
        ValueError: if it does not know a word of one, or reads instructions and there are none.
    """
    base = base_of(networks)
    for text in instructions:
        base.check_instruction(text)
    if base.spec.instruction and not instructions:
        raise ValueError(
            f"task {task} has no instructions, which the policy reads: add task=… with task.instructions=[…]"
        )


def check_asked(base: BasePolicy, environment: Mapping[str, Any], instruction: str) -> None:
    """Check what a robot is asked to do; tells the user if the policy was trained on other instructions.

    Raises:
        ValueError: if the policy does not know a word of it, or reads none and was trained on others.
    """
    base.check_instruction(instruction)
    if instruction in (known := known_instructions(environment)):
        return
    trained = "; ".join(known)
    if not base.spec.instruction:
        does = f"does what it was trained on: {trained}" if known else "was trained without"
        raise ValueError(f"instruction={instruction!r}: the policy reads no instructions, and {does}")
    told = f"it was trained on {trained or 'others'}"
    print(f"instruction={instruction!r} is new to this policy: {told}", file=sys.stderr)


def trained_execution(meta: Mapping[str, Any]) -> AsyncOptions:
    """How a policy executed the base's chunks in its training, from its metadata.

    Raises:
        ValueError: if the metadata is damaged.
    """
    try:
        return msgspec.convert(meta.get(EXECUTION, {}), AsyncOptions)
    except msgspec.ValidationError as error:
        raise ValueError(f"policy.json is damaged: {EXECUTION}: {error}; save the policy again") from error


def chosen_execution(asynchronous: str | None, delay: int | None, meta: Mapping[str, Any]) -> AsyncOptions:
    """The options `asynchronous` and `delay` of a command; null is that of the policy's training.

    Raises:
        ValueError: if the options do not go together, or the metadata is damaged.
    """
    trained = trained_execution(meta)
    mode = trained.asynchronous if asynchronous is None else asynchronous
    if delay is None:
        delay = 0 if mode == "off" else trained.delay
    return AsyncOptions(mode, delay)


def warn_of_other_execution(
    networks: BasePolicy | FinetunedPolicy, meta: Mapping[str, Any], execution: AsyncOptions
) -> None:
    """Tell the user if a tuned policy executes chunks in another way than in its training."""
    trained = trained_execution(meta)
    if isinstance(networks, FinetunedPolicy) and execution != trained:
        print(
            f"this policy was trained with {trained}, and acts with {execution}: it may do worse than after "
            "training with the same delay",
            file=sys.stderr,
        )


def side_by_side(networks: BasePolicy | FinetunedPolicy) -> dict[str, BasePolicy | FinetunedPolicy]:
    """The policies that are always shown together: `base`, and `tuned` if there is one."""
    if isinstance(networks, FinetunedPolicy):
        return {"base": networks.base, "tuned": networks}
    return {"base": networks}


def acting_policy(networks: BasePolicy | FinetunedPolicy, num_envs: int) -> ActingPolicy:
    """Something that acts in `num_envs` environments."""
    if isinstance(networks, FinetunedPolicy):
        return networks.policy(num_envs)
    return ActingPolicy(networks, num_envs)


def load_policy(path: str | Path, num_envs: int = 1, device: torch.device | None = None) -> ActingPolicy:
    """A policy that acts, from the directory of a run or of a saved policy."""
    return acting_policy(load_networks(path, device)[0], num_envs)


def choose_device(name: str) -> torch.device:
    """The torch device of that name; `auto` is a GPU if there is one, else the CPU.

    Raises:
        ValueError: if the device is not available.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device={name} is not available here ({reason}); use device=auto") from error
    return device
