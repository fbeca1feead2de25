"""The simulated iteration as a trace of torch's profiler: streams, launches, waits, messages, rates."""
