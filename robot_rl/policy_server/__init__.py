"""Policies served over a WebSocket, with the protocol of openpi (github.com/Physical-Intelligence/openpi)."""
