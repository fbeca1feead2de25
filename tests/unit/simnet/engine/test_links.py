"""The fluid network: who gets which rate, when what ends; and the GPU, which kernels share."""

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from simnet.engine.exact import Gpu
from simnet.engine.links import Network


def network(**capacities: float) -> tuple[simpy.Environment, Network]:
    env = simpy.Environment()
    links = Network(env)
    for name, bytes_per_s in capacities.items():
        links.add_link(name, bytes_per_s)
    return env, links


def end_times(env: simpy.Environment, *events: simpy.Event) -> list[float]:
    ends = [0.0] * len(events)
    for number, event in enumerate(events):
        event.callbacks.append(lambda _e, n=number: ends.__setitem__(n, env.now))
    env.run()
    return ends


@pytest.mark.parametrize(
    ("loads", "ends"),
    [
        ([{"a": 50.0, "b": 50.0}], [5.0]),
        ([{"a": 200.0, "b": 5.0}], [2.0]),
        ([{"b": 10.0}, {"b": 30.0}], [2.0, 4.0]),  # the second speeds up when the first ends
        ([{"a": 0.0}], [0.0]),
    ],
)
def test_an_activity_takes_its_bytes_over_its_slowest_link_and_what_is_left_of_it(loads, ends):
    env, links = network(a=100.0, b=10.0)
    assert end_times(env, *map(links.transfer, loads)) == pytest.approx(ends)


def test_rates_are_max_min_fair():
    """a is shared by three; x is held back by b to 1, so the other two get 4.5 each, not 3."""
    env, links = network(a=10.0, b=1.0)
    ends = end_times(env, links.transfer({"a": 1.0, "b": 1.0}), links.transfer({"a": 4.5}), links.transfer({"a": 4.5}))
    assert ends == pytest.approx([1.0, 1.0, 1.0])


def test_a_capacity_can_change_on_the_way():
    env, links = network(a=10.0)

    def degrade():
        yield env.timeout(1.0)
        links.add_link("a", 5.0)

    env.process(degrade())
    assert end_times(env, links.transfer({"a": 20.0})) == pytest.approx([3.0])


@given(
    flows=st.lists(
        st.tuples(st.sets(st.sampled_from("abcd"), min_size=1), st.floats(0.1, 100.0)), min_size=1, max_size=8
    ),
    capacity=st.floats(0.5, 50.0),
)
def test_no_link_carries_more_than_its_capacity_and_all_ends(flows, capacity):
    env, links = network(a=capacity, b=2 * capacity, c=capacity / 2, d=capacity)
    ends = end_times(env, *(links.transfer(dict.fromkeys(sorted(over), size)) for over, size in flows))
    rates = {"a": capacity, "b": 2 * capacity, "c": capacity / 2, "d": capacity}
    for link, rate in rates.items():
        crossing = [(size, end) for (over, size), end in zip(flows, ends, strict=True) if link in over]
        if crossing:
            assert max(end for _, end in crossing) * rate >= sum(size for size, _ in crossing) * (1 - 1e-9)
    slowest_alone = max(size / min(rates[link] for link in over) for over, size in flows)
    total = sum(size / min(rates[link] for link in over) for over, size in flows)
    assert slowest_alone * (1 - 1e-9) <= max(ends) <= total * (1 + 1e-9)


def gpu(slowdown: float = 1.0, comm_slowdown: float = 1.0) -> tuple[simpy.Environment, Gpu]:
    env = simpy.Environment()
    device = Gpu(env, comm_slowdown=comm_slowdown)
    device.set_slowdown(slowdown)
    return env, device


def test_two_kernels_share_and_the_seconds_by_part_add_up_to_the_time():
    env, device = gpu()
    long, short = device.run("backward", 3.0), device.run("encode", 1.0)
    env.run(short)
    assert env.now == pytest.approx(2.0)
    env.run(long)
    assert env.now == pytest.approx(4.0)
    assert device.busy_s == {"backward": pytest.approx(3.0), "encode": pytest.approx(1.0)}
