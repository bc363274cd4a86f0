"""Human-in-the-loop training: actor and learner processes and their link."""
