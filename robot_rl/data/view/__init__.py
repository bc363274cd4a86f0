"""A dataset as a page to look at: what is in it, and what of it looks wrong."""
