"""Environments of one training run in processes on several machines, which a Ray cluster provides."""
