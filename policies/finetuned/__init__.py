"""Finetuned policies by name; importing this package registers them with `robot_rl.policies.store`."""

from functools import partial

from robot_rl.policies.finetuned.dsrl import DSRL
from robot_rl.policies.finetuned.expo import Expo
from robot_rl.policies.finetuned.finetuned_policy import FinetunedPolicy, load_finetuned
from robot_rl.policies.finetuned.ibrl import IBRL
from robot_rl.policies.finetuned.residual import Residual
from robot_rl.policies.finetuned.residual_chunk import ResidualChunk
from robot_rl.policies.finetuned.rlpd import RLPD
from robot_rl.policies.registry import LOADERS

FINETUNED_POLICIES: tuple[type[FinetunedPolicy], ...] = (DSRL, Expo, IBRL, Residual, ResidualChunk, RLPD)

LOADERS.update({kind.kind: partial(load_finetuned, kind) for kind in FINETUNED_POLICIES})
