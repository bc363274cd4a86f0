"""Conversion from and to the formats of robomimic and LeRobot."""
