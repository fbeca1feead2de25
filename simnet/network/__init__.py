"""Where things run: links and their sharing, GPUs, and the topology that joins them."""
