"""Methods by name: what each is configured by and how it is set up."""

from collections.abc import Callable
from dataclasses import dataclass

from robot_rl.methods import bc, residual
from robot_rl.methods.job import Job, Prepared


@dataclass(frozen=True)
class Method:
    """A way to train."""

    config: type
    setup: Callable[[Job], Prepared]
    """Raises ValueError for whatever cannot work, before anything is written."""


METHODS = {
    "bc": Method(bc.BCConfig, bc.setup),
    "residual": Method(residual.ResidualConfig, residual.setup),
}
