"""Messages that differ from step to step are on average those that simnet simulates."""

import pytest

from tests.helpers.needs import needs

needs("torch")


import msgspec

from binsgdm.compressors.base import numel_of
from simnet import strategies
from tests.helpers.messages import SHAPES, real_messages, simulated_messages


@pytest.mark.parametrize("name", ["top_k", "ms_top_k", "random_k"])
def test_the_steps_of_a_warm_up_send_on_average_what_is_simulated(name):
    """K is a whole number in each step, so the mean of 4 is known within half a value with its index."""
    options = {"ratio": 0.01, "momentum": 0.9, "warmup_steps": 4}
    flat = {"topology": "gather"} if name == "ms_top_k" else {}  # by default it averages in the node first
    options |= flat
    real = real_messages(name, options, (2, 2), steps=5)
    stage = msgspec.convert(options, strategies.STRATEGIES.find(name)).dense_stage(100)
    assert stage.steps == 4
    (warm,) = simulated_messages(name, msgspec.to_builtins(stage.strategy), (2, 2))
    assert [message[:2] for message in real[:4]] == [warm[:2]] * 4
    assert sum(message[2] for message in real[:4]) / 4 == pytest.approx(warm[2], abs=8)
    assert real[0][2] > 30 * real[4][2]
    assert real[4:] == simulated_messages(name, {"ratio": 0.01, "momentum": 0.9, **flat}, (2, 2))


def test_elias_sends_lengths_and_then_as_many_bits_as_were_measured():
    real = real_messages("qsgd", {"coding": "elias", "bits": 2}, (2, 2))
    norm_and_length_bytes = 8
    coded_bits = (real[1][2] - norm_and_length_bytes) * 8 / numel_of(SHAPES)
    options = {"coding": "elias", "bits": 2, "coded_bits": coded_bits}
    assert simulated_messages("qsgd", options, (2, 2)) == [real[0], (*real[1][:2], pytest.approx(real[1][2], abs=1))]


def test_grad_zip_and_atomo_send_on_average_what_is_simulated_between_nodes():
    turns = real_messages("grad_zip", {"topology": "hierarchical"}, (2, 2), steps=2)
    simulated = simulated_messages("grad_zip", {"topology": "hierarchical"}, (2, 2))
    assert [turns[0], turns[2]] == [simulated[0], simulated[2]]
    assert (turns[1][2] + turns[4][2]) / 2 == simulated[1][2]
    real = real_messages("atomo", {"topology": "hierarchical"}, (2, 2), steps=100)
    in_node, lengths, drawn, gathered = simulated_messages("atomo", {"topology": "hierarchical"}, (2, 2))
    assert [real[0], real[1], real[3]] == [in_node, lengths, gathered]
    # One standard deviation of the mean of 100 draws is about 3 %.
    assert sum(message[2] for message in real[2::4]) / 100 == pytest.approx(drawn[2], rel=0.09)
