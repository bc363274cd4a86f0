"""robomimic's HDF5 files: reading and writing."""
