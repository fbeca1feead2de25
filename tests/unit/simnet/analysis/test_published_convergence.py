"""What publications say of trainings that nobody here made."""

from simnet.analysis import published_convergence
from simnet.strategies import STRATEGIES


def test_every_record_is_of_strategies_that_there_are_and_has_a_source() -> None:
    found = published_convergence.of(STRATEGIES.names())
    assert len(found) >= 3
    assert all(set(one.kinds) <= set(STRATEGIES.names()) and "arXiv" in one.source for one in found)


def test_what_is_published_of_others_is_left_out() -> None:
    assert published_convergence.of({"binsgdm"}) == ()
    assert all("diloco" in one.kinds for one in published_convergence.of({"diloco"}))
