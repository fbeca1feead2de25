"""Real nodes on one Linux machine: network namespaces joined by a switch, with NICs of a set bandwidth."""
