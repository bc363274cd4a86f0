"""Parts that the methods share: critics, targets, optimisers."""
