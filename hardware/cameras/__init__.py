"""Cameras: a process for each, watched by the server; clients read the newest frame with its age."""
