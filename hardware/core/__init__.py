"""What decides whether and how the arm moves: pure logic, one thread, no sockets."""
