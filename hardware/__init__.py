"""Robot side: protocol, robot server and client, safety core, drivers, cameras, recording, teleoperation.

It runs on the robot's computer, so it never imports torch.
"""
