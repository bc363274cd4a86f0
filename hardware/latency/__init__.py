"""Measures the latency of an arm, its states and its cameras by swinging one axis and cross-correlation."""
