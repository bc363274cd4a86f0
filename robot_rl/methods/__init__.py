"""Training methods, one module each: configuration and learner, in the notation of the paper."""
