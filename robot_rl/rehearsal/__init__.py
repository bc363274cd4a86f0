"""A day at the robot without a person: the commands are real, and a script acts as their operator."""
