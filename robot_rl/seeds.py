"""Seeds of episodes: each episode of a run has its own, whichever environment and process run it."""

import numpy as np


def episode_seed(seed: int, stream: str, episode: int) -> int:
    """A 32-bit seed for one episode of one purpose (`train`, `eval`, `collect`, …) of a run."""
    return int(np.random.SeedSequence([seed, *stream.encode(), episode]).generate_state(1)[0])
