"""Networks used by policies: actors, critics, encoders, denoisers."""
