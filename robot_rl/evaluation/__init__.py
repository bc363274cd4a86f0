"""Success of a policy over a fixed list of initial states, with its confidence interval."""
