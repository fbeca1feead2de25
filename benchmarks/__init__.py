"""Benchmarks: ratios from one run, with the absolute figures beside."""
