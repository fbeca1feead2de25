"""When a fault is there: once, for good, or again and again; and whether two of a kind are there at one time."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.cluster.faults import SlowLink
from simnet.cluster.faults.windows import TimedFault
from simnet.engine.scenario import RunSettings, Scenario
from simnet.engine.simulation import simulate
from simnet.strategies import DenseAllReduce
from tests.helpers.fault_samples import cluster, computing, fault, ring_s, sending
from tests.helpers.step_samples import WORKLOAD

TENTH_S = 0.1


def link(begins: str = "0 s", to: str | None = None, every: str | None = None, place: int = 0) -> SlowLink:
    when = {"from": begins} | ({} if to is None else {"to": to}) | ({} if every is None else {"every": every})
    slow = fault("slow_link", place=place, rate=0.5, **when)
    assert isinstance(slow, SlowLink)
    return slow


def are_refused(*faults: TimedFault) -> bool:
    try:
        cluster(*faults)
    except ValueError as error:
        return "two of kind 'slow_link' on the same links at one time, from " in str(error)
    return False


@pytest.mark.parametrize(
    ("when", "on", "off"),
    [
        ({}, [0.0, 1e9], []),
        ({"begins": "2 s"}, [2.0, 1e9], [0.0, 1.999]),
        ({"begins": "2 s", "to": "3 s"}, [2.0, 2.999], [1.999, 3.0, 5.0]),
        ({"begins": "2 s", "to": "3 s", "every": "10 s"}, [2.0, 2.999, 12.0, 1002.5], [0.0, 3.0, 11.999, 13.0, 1003.0]),
    ],
)
def test_a_fault_is_there_from_its_begin_to_before_its_end(when: dict[str, str], on: list[float], off: list[float]):
    slow = link(**when)
    assert [time_s for time_s in (*on, *off) if slow.is_on(time_s)] == on


@st.composite
def windows(draw: st.DrawFn) -> SlowLink:
    """Return a window whose times are tenths of a second."""
    tenths = st.integers(0, 40)
    begins = draw(tenths)
    kind = draw(st.sampled_from(["for good", "once", "again"]))
    if kind == "for good":
        return link(f"{begins / 10} s")
    lasts = draw(st.integers(1, 15))
    every = f"{(lasts + draw(st.integers(1, 10))) / 10} s" if kind == "again" else None
    return link(f"{begins / 10} s", f"{(begins + lasts) / 10} s", every)


@given(windows(), windows())
def test_two_contradict_each_other_where_both_are_there_at_some_tenth_of_a_second(first: SlowLink, other: SlowLink):
    # The longest common period of two that come again and again is 25 x 24 tenths.
    times_s = [TENTH_S * (tenth + 0.5) for tenth in range(41 + 2 * 25 * 24)]
    overlap = any(first.is_on(time_s) and other.is_on(time_s) for time_s in times_s)
    assert are_refused(first, other) == overlap
    assert bool(first.contradicts(other)) == bool(other.contradicts(first)) == overlap


@given(windows())
def test_changes_are_where_it_begins_and_ends(window: SlowLink):
    changes, time_s = [], 0.0
    while (time_s := window.next_change_s(time_s)) < 20:
        changes.append(round(time_s / TENTH_S))
    states = [window.is_on(TENTH_S * (tenth + 0.5)) for tenth in range(200)]
    seen = [tenth for tenth in range(1, 200) if states[tenth] != states[tenth - 1]]
    # One that begins with the run may say so, too; the last tenth is 20 s but for rounding.
    assert [tenth for tenth in changes if 0 < tenth < 200] == seen


@pytest.mark.parametrize(
    ("first", "other", "overlap"),
    [
        (link("5 s"), link("0 s", "1 s", "10 s"), True),
        (link("0 s", "2 s", "10 s"), link("9 s", "11 s", "10 s"), True),
        (link("0 s", "1 ms", "10 s"), link("5 s", "5.001 s", "10.01 s"), True),
        (link("1e9 s"), link("0 s", "1 s", "1000 s"), True),
        (link("0 s", "1 s"), link("1 s"), False),
        (link("0 s", "0.1 s", "0.2 s"), link("0.1 s", "0.2 s", "0.4 s"), False),
        (link("0 s"), link("0 s", place=1), False),
        (link("0 s", "5 s"), link("5 s", "6 s", "7 s"), False),
    ],
)
def test_what_meets_only_later_is_refused_too_and_what_follows_each_other_is_not(
    first: SlowLink, other: SlowLink, overlap: bool
):
    assert are_refused(first, other) is overlap


def test_a_link_that_is_slow_now_and_then_carries_as_much_as_its_mean_rate():
    rate, lasts_s, every_s = 0.25, 3.0, 10.0
    flapping = fault("slow_link", place=0, rate=rate, **{"from": "1 s", "to": "4 s", "every": "10 s"})
    slow = sending(flapping, iterations=2000, alpha_s=0.0)
    mean_rate = (lasts_s * rate + every_s - lasts_s) / every_s
    # 2,000 steps last some thirty periods: the last of them may be cut anywhere.
    assert slow.iteration_s == pytest.approx(ring_s(alpha_s=0.0) / mean_rate, rel=0.02)
    assert max(slow.iterations_s) == pytest.approx(ring_s(alpha_s=0.0) / rate)
    assert min(slow.iterations_s) == pytest.approx(ring_s(alpha_s=0.0))


def test_steps_in_a_window_are_slow_and_those_before_and_after_are_not():
    usual_s = ring_s()
    once = fault("slow_link", place=1, rate=0.5, **{"from": f"{10 * usual_s} s", "to": f"{30 * usual_s} s"})
    times_s = sending(once, iterations=40, alpha_s=0.0).iterations_s
    assert times_s[:9] == pytest.approx([ring_s(alpha_s=0.0)] * 9)
    assert times_s[12:18] == pytest.approx([2 * ring_s(alpha_s=0.0)] * 6)
    assert times_s[-5:] == pytest.approx([ring_s(alpha_s=0.0)] * 5)
    late = link("1000 s")
    assert sending(late, iterations=3).iteration_s == pytest.approx(usual_s)
    assert (late.next_change_s(0.0), late.next_change_s(1000.0)) == (1000, math.inf)
    flapping = link("0 s", "50 ms", "100 ms")
    assert computing(flapping, iterations=5).iteration_s == pytest.approx(computing().iteration_s)


@pytest.mark.parametrize(
    ("when", "note"),
    [
        ({"from": "1000 s"}, "slow link from 1000 s on: only "),
        ({"from": "1 s", "to": "2 s", "every": "1 h"}, "slow link every 3600 s: only "),
        ({"to": "1 s", "every": "2 s"}, None),
        ({"from": "1 s", "to": "2 s"}, None),
    ],
)
def test_what_a_run_does_not_see_is_said(when: dict[str, str], note: str | None):
    timed = cluster(fault("slow_link", place=0, rate=0.5, **when))
    scenario = Scenario(cluster=timed, workload=WORKLOAD, strategy=DenseAllReduce(), run=RunSettings(iterations=30))
    notes = [note_ for note_ in simulate(scenario).notes if "run.iterations" in note_]
    assert [note_[: len(note or "")] for note_ in notes] == ([note] if note else [])
