"""Teleoperation session: connects a device to an arm and records episodes."""
