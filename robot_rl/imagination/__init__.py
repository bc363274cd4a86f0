"""World models learned during training, and the imagined transitions that they give to a learner."""
