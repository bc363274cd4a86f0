"""Environments of other simulators, which run in processes with their own interpreters."""
