"""Campaigns of the lab: predicted, and only then run by real ranks; each a module here, all by one engine."""
