"""Measure one card in one command: a preflight, then parts that can each be repeated, each a measurement file."""
