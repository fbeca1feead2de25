"""Questions that take many runs: sweeps, crossovers, advice, time to a target, loss curves."""
