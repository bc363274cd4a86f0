"""Datasets in the formats of robomimic and LeRobot."""
