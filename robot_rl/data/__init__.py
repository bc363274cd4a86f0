"""Datasets on disk and the replay in memory."""
