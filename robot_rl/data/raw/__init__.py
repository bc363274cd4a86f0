"""Converts raw recordings of a robot to datasets with a fixed rate."""
