"""Kinds of policies by name: base policies that can be trained, and loaders of all others.

A base policy needs one line in `BASES`. A finetuned policy also needs its base, so it has its own function in
`LOADERS`, which reads the base from the sub-directory `base/` with `robot_rl.policies.store.load_base`.
"""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from robot_rl.policies.bases.act import ACTConfig, ACTPolicy
from robot_rl.policies.bases.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.policies.bases.flow import FlowConfig, FlowPolicy
from robot_rl.policies.bases.imitation import ImitationPolicy
from robot_rl.policies.bases.uniform import UniformConfig, UniformPolicy
from robot_rl.policies.bases.vla import VLAConfig, VLAPolicy

if TYPE_CHECKING:
    from robot_rl.policies.store import Record


class Base(NamedTuple):
    """Classes of a base policy, built as `policy(config, state_size, action_size, cameras, image_size)`."""

    config: type[Any]
    policy: type[ImitationPolicy]


BASES: dict[str, Base] = {
    "diffusion": Base(DiffusionConfig, DiffusionPolicy),
    "flow": Base(FlowConfig, FlowPolicy),
    "act": Base(ACTConfig, ACTPolicy),
    "vla": Base(VLAConfig, VLAPolicy),
    "uniform": Base(UniformConfig, UniformPolicy),
}

LOADERS: dict[str, "Callable[[Path, Record], nn.Module]"] = {}
"""Functions that load a policy that is not in `BASES`, from its directory and its `policy.json`."""


def base_kind(policy: nn.Module) -> str:
    """The name under which a base policy's class is registered.

    Raises:
        ValueError: if the class is not registered.
    """
    for kind, base in BASES.items():
        if type(policy) is base.policy:
            return kind
    raise ValueError(f"{type(policy).__name__} is not in robot_rl.policies.registry.BASES: add it there")


def names_hint(name: str, valid: Mapping[str, object]) -> str:
    """Text for an invalid name: the closest valid name, and all valid ones."""
    close = get_close_matches(name, valid, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}Valid: {', '.join(sorted(valid))}"
