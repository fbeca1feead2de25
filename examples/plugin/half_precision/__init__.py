"""Gradients in half precision, gathered by all: an example of a package that adds a system to simnet and binsgdm."""
