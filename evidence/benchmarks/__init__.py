"""Benchmarks: ratios from one run, and the absolute figures."""
