"""Base policies learned from demonstrations, and the policies that RL finetunes around them.

Tensors in, tensors out: nothing here imports environments or hardware.
"""
