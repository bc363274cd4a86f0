"""Robot applications: serving, teleoperation, recording, deployment and diagnostic checks."""
