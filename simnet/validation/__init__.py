"""Validation: calibrate on some measured values, predict others, and report the error."""
