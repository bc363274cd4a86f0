"""Writes an HTML page that shows a dataset and what looks wrong in it."""
