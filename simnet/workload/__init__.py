"""The training workload: gradients in the order in which they become ready, compute times, buckets, kernels."""
