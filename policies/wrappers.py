"""Wrappers by name; importing this module lets `policies.store` load them."""

from functools import partial

from policies.dsrl import DSRL
from policies.expo import Expo
from policies.ibrl import IBRL
from policies.registry import LOADERS
from policies.residual import Residual
from policies.residual_chunk import ResidualChunk
from policies.rlpd import RLPD
from policies.wrapper import Wrapper, load_wrapper

WRAPPERS: tuple[type[Wrapper], ...] = (DSRL, Expo, IBRL, Residual, ResidualChunk, RLPD)

LOADERS.update({wrapper.kind: partial(load_wrapper, wrapper) for wrapper in WRAPPERS})
