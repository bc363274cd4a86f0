"""Writes files that survive a power cut, and stores trees of tensors without pickling."""
