"""Wrappers by name; importing this module lets `robot_rl.policies.store` load them."""

from functools import partial

from robot_rl.policies.registry import LOADERS
from robot_rl.policies.wrappers.dsrl import DSRL
from robot_rl.policies.wrappers.expo import Expo
from robot_rl.policies.wrappers.ibrl import IBRL
from robot_rl.policies.wrappers.residual import Residual
from robot_rl.policies.wrappers.residual_chunk import ResidualChunk
from robot_rl.policies.wrappers.rlpd import RLPD
from robot_rl.policies.wrappers.wrapper import Wrapper, load_wrapper

WRAPPERS: tuple[type[Wrapper], ...] = (DSRL, Expo, IBRL, Residual, ResidualChunk, RLPD)

LOADERS.update({wrapper.kind: partial(load_wrapper, wrapper) for wrapper in WRAPPERS})
