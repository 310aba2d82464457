"""Ways to move data between the agents of an epoch."""
