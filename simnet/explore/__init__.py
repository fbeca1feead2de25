"""A local page to turn knobs on a scenario: nodes, bandwidth, batch, codec, strategies."""
