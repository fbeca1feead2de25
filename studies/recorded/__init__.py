"""Recorded steps that no strategy describes: predicted, then run by real ranks in the lab."""
