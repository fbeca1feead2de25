"""A discrete-event model of distributed training: what 1-bit communication gains, where, and from what on."""
