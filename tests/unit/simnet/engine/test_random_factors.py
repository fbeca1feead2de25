"""Draws of faults: what a fault draws hangs on what it says, and neither on its place nor on the others."""

import numpy as np

from simnet.cluster.faults import CollectiveJitter, ComputeJitter, Pause, SlowRank
from simnet.cluster.hardware import Fault
from simnet.core.units import Duration
from simnet.engine.random_factors import Variation, Varied
from tests.helpers.topologies import topology

JITTER, OTHERS = ComputeJitter(cv=0.1, ranks=(0, 1, 2)), ComputeJitter(cv=0.1, ranks=(3,))
PAUSE = Pause(pause=Duration(0.1), probability=0.5)
RANKS, COLLECTIVES = 4, 3


def drawn(*faults: Fault, seed: int = 0, iteration: int = 5) -> Varied:
    return Variation(topology(2, 2, faults=faults), seed).of(iteration, COLLECTIVES)


def same(left: object, other: object) -> bool:
    return bool(np.array_equal(np.asarray(left), np.asarray(other)))


def test_without_a_fault_the_others_draw_what_they_did() -> None:
    collectives = CollectiveJitter(cv=0.1)
    whole = drawn(JITTER, OTHERS, PAUSE, collectives)
    without = drawn(OTHERS, PAUSE, collectives)
    assert same(whole.compute[3], without.compute[3])
    assert same(without.compute[:3], np.ones(3))
    assert same(whole.pauses_s, without.pauses_s)
    assert same(whole.collectives, without.collectives)


def test_the_order_of_faults_changes_no_draw() -> None:
    faults = (JITTER, PAUSE, OTHERS, SlowRank(node=0, compute_slowdown=1.5))
    for ordered, other in zip(drawn(*faults), drawn(*reversed(faults)), strict=True):
        assert same(ordered, other)


def test_two_faults_that_say_the_same_draw_apart() -> None:
    once, twice = drawn(JITTER).compute, drawn(JITTER, JITTER).compute
    assert not same(twice, once * once)
    assert same(drawn(JITTER, PAUSE, JITTER).compute, twice)
