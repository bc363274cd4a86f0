"""From a robot's raw recordings to datasets of a fixed rate."""
