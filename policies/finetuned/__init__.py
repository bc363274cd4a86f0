"""Finetuned policies; importing this package registers them, so that saved ones can be loaded."""

from robot_rl.policies.finetuned.dsrl import DSRL
from robot_rl.policies.finetuned.expo import Expo
from robot_rl.policies.finetuned.finetuned_policy import FinetunedPolicy
from robot_rl.policies.finetuned.ibrl import IBRL
from robot_rl.policies.finetuned.residual import Residual
from robot_rl.policies.finetuned.residual_chunk import ResidualChunk
from robot_rl.policies.finetuned.rlpd import RLPD

__all__ = ["DSRL", "IBRL", "RLPD", "Expo", "FinetunedPolicy", "Residual", "ResidualChunk"]
