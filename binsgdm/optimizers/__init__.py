"""Optimizers whose gradients stay local and whose steps are protocols: BinSGDM and 1-bit Adam."""
