"""Optimizers whose gradients stay local and whose steps are conversations: BinSGDM and 1-bit Adam."""
