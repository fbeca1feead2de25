"""How long something is repeated, and how sure its median is; no clock is looked at."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.bench.timing import StopRule, interleave, interval_of_median, relative_error


@pytest.mark.parametrize(
    ("count", "low", "high"), [(6, 1, 6), (8, 1, 8), (9, 2, 8), (20, 6, 15), (25, 8, 18), (100, 40, 61)]
)
def test_the_interval_of_the_median_is_that_of_the_tables_of_order_statistics(count, low, high):
    assert interval_of_median([float(n) for n in range(1, count + 1)]) == (low, high)
    # Few samples have none.
    assert relative_error([1.0] * 5) == float("inf")
    assert relative_error([1.0] * 6) == 0


def test_a_steady_thing_stops_at_the_least_repetitions_and_an_unsteady_one_at_the_most():
    taken: list[str] = []

    class Alone:
        device = torch.device("cpu")

        def barrier(self) -> None:
            pass

        def slowest(self, seconds):
            return list(seconds)

    def trial(name, times):
        def once():
            taken.append(name)
            return [times[len(taken) % len(times)], 7.0]

        return once

    trials = {"steady": trial("steady", [1e-6]), "unsteady": trial("unsteady", [1e-6, 5e-6, 25e-6])}
    stop_rule = StopRule(relative_error=0.01, min_repetitions=8, max_repetitions=30, max_seconds=1.0)
    seen: list[float] = []
    found = interleave(trials, stop_rule, Alone(), progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert 8 <= len(found["steady"]) < 14
    assert len(found["unsteady"]) == 30
    assert all(row[1] == 7.0 for rows in found.values() for row in rows)
    assert taken[:20] != sorted(taken[:20])
