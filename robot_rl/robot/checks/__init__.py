"""What a robot must have to work: its server, asked from here, and the machine that runs the server."""
