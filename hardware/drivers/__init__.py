"""Arms behind one small interface."""
