"""Recorded steps and timelines, from and for other programs: Kineto and Chakra."""
