"""Safety core of the robot server: modes, lease, checks and motion limits; single-threaded, no sockets."""
