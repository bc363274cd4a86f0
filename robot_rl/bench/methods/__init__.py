"""A table of methods, filled run by run: protocols, a queue, results, and the page that shows them."""
