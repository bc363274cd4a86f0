"""Parts shared by the methods: critics, targets, actors, sampling of batches."""
