"""Training methods, one module each: configuration, learner and networks, in the notation of the paper."""
