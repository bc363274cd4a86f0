"""What goes over the wire: docs/protocol.md."""
