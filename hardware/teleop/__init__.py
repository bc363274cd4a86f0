"""Teleoperation: input devices and the mapping from their samples to robot commands."""
