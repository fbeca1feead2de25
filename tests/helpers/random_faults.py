"""Faults that Hypothesis draws."""

from hypothesis import strategies as st

from simnet.cluster import faults
from simnet.cluster.hardware import Fault, SlowNode
from simnet.core.units import Duration

slowdowns = st.sampled_from([1.0, 1.3, 2.0, 3.7])


def constant_faults(num_nodes: int, per_node: int) -> st.SearchStrategy[Fault]:
    """Return faults that are there for good and draw nothing."""
    node = st.integers(0, num_nodes - 1)
    return st.one_of(
        st.builds(SlowNode, node=node, compute_slowdown=slowdowns, nic_slowdown=slowdowns),
        st.builds(faults.SlowRank, node=node, local_rank=st.integers(0, per_node - 1), compute_slowdown=slowdowns),
        st.builds(faults.SlowLink, place=node, rate=st.sampled_from([0.1, 0.5, 1.0])),
        st.builds(
            faults.SlowLink, link=st.just("port"), place=st.integers(0, num_nodes * per_node - 1), rate=st.just(0.01)
        ),
        st.builds(faults.AddedLatency, at_nodes=st.tuples(node), added=st.just(Duration(1e-3))),
        st.builds(faults.BackgroundTraffic, at_nodes=st.tuples(node), flows=st.integers(1, 3)),
        st.builds(
            faults.PacketLoss,
            at_nodes=st.tuples(node),
            probability=st.sampled_from([1e-5, 0.01]),
            round_trip=st.just(Duration(1e-4)),
        ),
    )


varying = st.one_of(
    st.builds(faults.ComputeJitter, cv=st.sampled_from([0.01, 0.3])),
    st.builds(faults.CollectiveJitter, cv=st.just(0.2)),
    st.builds(faults.Pause, pause=st.just(Duration(0.05)), probability=st.just(0.3)),
    st.builds(faults.Pause, pause=st.just(Duration(0.2)), every=st.just(2)),
)
comings = st.builds(
    faults.SlowLink,
    place=st.just(0),
    rate=st.sampled_from([0.2, 0.5]),
    from_s=st.builds(Duration, st.floats(0, 0.2)),
    to_s=st.builds(Duration, st.floats(0.21, 0.4)),
    every_s=st.none() | st.just(Duration(0.5)),
)
