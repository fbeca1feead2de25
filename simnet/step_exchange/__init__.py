"""Recorded steps from and for other programs: Chakra execution traces, and traces of torch.profiler."""
