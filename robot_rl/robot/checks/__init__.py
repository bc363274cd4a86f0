"""Checks of `robot-rl doctor`: this installation, a robot's server, and the server's machine."""
