"""Methods by name: what each is configured by and how it is set up."""

from collections.abc import Callable
from dataclasses import dataclass

from robot_rl.methods import (
    bc,
    classifier,
    dsrl,
    dsrl_na,
    expo,
    ibrl,
    residual,
    residual_chunk,
    residual_ppo,
    rlpd,
)
from robot_rl.methods.context import Job, Prepared


@dataclass(frozen=True)
class Method:
    """A way to train."""

    config: type
    setup: Callable[[Job], Prepared]
    """Raises ValueError for whatever cannot work, before anything is written."""


METHODS = {
    "bc": Method(bc.BCConfig, bc.setup),
    "classifier": Method(classifier.ClassifierConfig, classifier.setup),
    "dsrl": Method(dsrl.DSRLConfig, dsrl.setup),
    "dsrl_na": Method(dsrl_na.DSRLNAConfig, dsrl_na.setup),
    "expo": Method(expo.ExpoConfig, expo.setup),
    "ibrl": Method(ibrl.IBRLConfig, ibrl.setup),
    "residual": Method(residual.ResidualConfig, residual.setup),
    "residual_chunk": Method(residual_chunk.ResidualChunkConfig, residual_chunk.setup),
    "residual_ppo": Method(residual_ppo.ResidualPPOConfig, residual_ppo.setup),
    "rlpd": Method(rlpd.RLPDConfig, rlpd.setup),
}
