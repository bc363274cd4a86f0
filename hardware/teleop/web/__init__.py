"""Web page as a teleoperation device: shows the robot in a browser and moves it."""
