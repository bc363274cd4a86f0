"""Gymnasium environments: robosuite tasks, exact simulator state, vectorisation, scripted experts."""
