"""The link between actor and learner: messages, server, client, send queue and spool."""
