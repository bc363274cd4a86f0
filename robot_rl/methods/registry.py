"""Registry of methods by name."""

from collections.abc import Callable
from typing import cast

from robot_rl.learning.config import OffPolicyConfig
from robot_rl.methods.bc import BCConfig, BCMethod
from robot_rl.methods.classifier import ClassifierConfig, ClassifierMethod
from robot_rl.methods.dsrl import DSRLMethod
from robot_rl.methods.dsrl_na import DSRLNAMethod
from robot_rl.methods.expo import ExpoMethod
from robot_rl.methods.ibrl import IBRLMethod
from robot_rl.methods.method import OfflineMethod, OffPolicyMethod, OnPolicyMethod
from robot_rl.methods.residual import ResidualMethod
from robot_rl.methods.residual_chunk import ResidualChunkMethod
from robot_rl.methods.residual_ppo import ResidualPPOConfig, ResidualPPOMethod
from robot_rl.methods.rlpd import RLPDMethod

Method = OfflineMethod | OnPolicyMethod | OffPolicyMethod
MethodConfig = BCConfig | ClassifierConfig | ResidualPPOConfig | OffPolicyConfig

METHODS: dict[str, type[Method]] = {
    "bc": BCMethod,
    "classifier": ClassifierMethod,
    "dsrl": DSRLMethod,
    "dsrl_na": DSRLNAMethod,
    "expo": ExpoMethod,
    "ibrl": IBRLMethod,
    "residual": ResidualMethod,
    "residual_chunk": ResidualChunkMethod,
    "residual_ppo": ResidualPPOMethod,
    "rlpd": RLPDMethod,
}


def build_method(config: MethodConfig) -> Method:
    """Build the method of a configuration.

    Raises:
        ValueError: if the configuration is of another method than its name says.
    """
    kind = METHODS.get(config.name)
    if kind is None or not isinstance(config, kind.config_type):
        raise ValueError(f"method.name={config.name}: leave it out, and choose a method by method=…")
    # Each method is built from its own type of configuration, which was checked above.
    return cast("Callable[[MethodConfig], Method]", kind)(config)
