"""Deployment: a policy controls a robot through its server."""
