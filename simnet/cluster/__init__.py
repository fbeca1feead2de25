"""GPUs, nodes, links, faults and their calibration, and what they come to: the topology."""
