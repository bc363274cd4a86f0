"""Operators who may take over from the policy: a person at a device, or a scripted expert."""
