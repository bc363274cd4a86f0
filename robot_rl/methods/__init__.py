"""The ways to train: each method is one module that reads like its paper."""
