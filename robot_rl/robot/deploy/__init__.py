"""A policy as the controller of a robot behind its server."""
