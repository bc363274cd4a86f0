"""Policies around a frozen base, which reinforcement learning trains."""
