"""`base=remote`: a base policy behind a WebSocket, with the protocol of openpi."""
