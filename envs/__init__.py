"""Gymnasium environments: robosuite tasks, exact simulator state, vectorisation, scripted experts."""

import logging

# robosuite logs a warning for every optional part that is not installed, when it is imported.
logging.getLogger("robosuite_logs").addFilter(lambda record: record.levelno >= logging.ERROR)
