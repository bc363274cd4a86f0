"""The robot's side: protocol, bridge server and client, safety, drivers, cameras, teleoperation.

It runs on a robot's own computer, so it never imports torch.
"""
