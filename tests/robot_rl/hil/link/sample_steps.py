"""Records of an actor, for tests of the link."""

import numpy as np

from robot_rl.hardware.protocol.large_messages import pack
from robot_rl.hil.link.messages import Step

EMPTY = pack(np.zeros(1, np.float32))


def step(episode: int, index: int) -> Step:
    return Step(
        episode=episode,
        index=index,
        version=0,
        source="policy",
        fields={},
        action=EMPTY,
        proposed=EMPTY,
        reward=0.0,
        terminated=False,
    )
