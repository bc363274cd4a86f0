"""The connection between actor and learner: messages, server, client."""
