"""Random orders of calls end in replicas that are equal to the bit, or in a sentence on every rank."""

import pytest

from tests.helpers.needs import needs

needs("torch")

from tests.distributed import shuffled_calls

pytestmark = pytest.mark.slow

LAUNCHED = shuffled_calls


@pytest.mark.parametrize("kind", shuffled_calls.KINDS)
def test_ranks_end_alike_or_all_hear_why_not(results, kind):
    for seed in range(shuffled_calls.ORDERS):
        calls, sentences, are_same = results[kind, seed]
        assert all(are_same) or all(sentences), calls


def test_some_orders_end_alike_and_some_in_a_sentence(results):
    ends = {all(sentences) for _, sentences, _ in results.values()}
    assert ends == {False, True}
