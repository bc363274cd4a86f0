"""Base policies: learned from demonstrations and then frozen."""
