"""Cameras: one process each, monitored by the server; clients read the newest image with its age."""
