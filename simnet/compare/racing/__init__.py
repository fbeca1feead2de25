"""Who reaches a metric first: measured convergence by step, times what a step takes on a cluster."""
