"""LeRobotDataset v3: reading and writing."""
