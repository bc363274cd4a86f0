"""A person helps while a policy learns: who acts, how what was done gets from robot to learner, and back."""
