"""Environments of other simulators, which run in processes with interpreters of their own."""
