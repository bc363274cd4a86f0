"""The training loops, and what a run writes: checkpoints, metrics, saved policies."""
