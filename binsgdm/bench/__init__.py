"""Time what training is made of, on this machine or on all ranks of a cluster, and keep every sample."""
