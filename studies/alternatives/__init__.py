"""Sharding, local steps and 8 bits: predicted by the strategies of simnet, then run in the lab."""
