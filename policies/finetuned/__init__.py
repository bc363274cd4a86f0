"""Policies that reinforcement learning trains around a frozen base: residual, DSRL, EXPO, IBRL, RLPD."""
