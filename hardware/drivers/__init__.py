"""Drivers of robot arms behind one small interface."""
