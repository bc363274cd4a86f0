"""Human-in-the-loop training: actor and learner processes, their link, and operators who take over."""
