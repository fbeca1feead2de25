"""Collective algorithms as pure data (`Schedule`), what they load, and how a cluster runs them."""
