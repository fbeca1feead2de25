"""Training on nodes that are not alike, predicted and then run in the lab."""
