"""Kinds of policies by name: what can be trained, and how each is read from a directory.

A base policy needs one line in `BASES`. A wrapper is not built from sizes alone, so it comes
with a function of its own in `LOADERS`; its directory holds its base in the sub-directory
`base/`, which that function reads with `robot_rl.policies.store.load_base`.
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

if TYPE_CHECKING:
    from robot_rl.policies.store import Record


class Base(NamedTuple):
    """A base policy that `policy(config, state_size, action_size, cameras, image_size)` builds."""

    config: type[Any]
    policy: type[ImitationPolicy]


BASES: dict[str, Base] = {
    "diffusion": Base(DiffusionConfig, DiffusionPolicy),
    "flow": Base(FlowConfig, FlowPolicy),
    "act": Base(ACTConfig, ACTPolicy),
    "uniform": Base(UniformConfig, UniformPolicy),
}

LOADERS: dict[str, "Callable[[Path, Record], nn.Module]"] = {}
"""Reads a policy that is not in `BASES` from its directory and the record of its `policy.json`."""


def base_kind(policy: nn.Module) -> str:
    """The name under which a base policy's class is registered.

    Raises:
        ValueError: it is not registered.
    """
    for kind, base in BASES.items():
        if type(policy) is base.policy:
            return kind
    raise ValueError(f"{type(policy).__name__} is not in robot_rl.policies.registry.BASES: add it there")


def nearest(name: str, valid: Mapping[str, object]) -> str:
    """What to say of a name that is not valid."""
    close = get_close_matches(name, valid, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}Valid: {', '.join(sorted(valid))}"
