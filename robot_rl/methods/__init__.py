"""Training methods, one module each, in the notation of their papers."""
