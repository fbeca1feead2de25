"""What is trained: gradients in the order in which they become ready, compute times, buckets, kernels."""
