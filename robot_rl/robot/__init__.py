"""Using a robot: teleoperation, recording, deployment, checks."""
