"""What training a model takes, found without its memory."""
