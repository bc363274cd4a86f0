"""A page for any browser that shows the robot and moves it: a device like any other."""
