"""Teleoperation from the command line: a device, an arm, and what is recorded of them."""
