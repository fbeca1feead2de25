"""Record the training steps of a script as rank 0 of any world, with no other rank."""
