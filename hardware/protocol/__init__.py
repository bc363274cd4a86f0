"""Protocol between the robot server and its clients: messages, encoding, sockets, keys (docs/protocol.md)."""
