"""Nodes on one Linux machine: network namespaces behind a switch, with NICs of a set bandwidth."""
