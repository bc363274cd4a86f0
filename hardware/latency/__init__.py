"""How late an arm, its states and its cameras are: one axis is swung, and what is seen is correlated."""
