"""Models that are joined, trained, left and dropped leave nothing: no process group, thread or open file."""

import pytest

from tests.helpers.needs import needs

needs("torch")

from tests.distributed import leaving

LAUNCHED = leaving


@pytest.mark.parametrize("name", leaving.LIVES)
def test_what_a_process_holds_does_not_grow_with_the_models_it_has_trained(results, name):
    for of_rank in results["held"]:
        first, *later = of_rank[name][leaving.WARM_UP :]
        assert [{key for key, number in one.items() if number > first[key]} for one in later] == [set()] * len(later)
