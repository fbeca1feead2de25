"""gloo over latency: a window of two segments explains measured all-reduces, in every executor alike."""

import numpy as np
import pytest

from simnet.cluster import topology
from simnet.cluster.hardware import Calibration, Cluster, Link, LinkCalibration
from simnet.cluster.topology import Topology
from simnet.collectives import link_loads, ring, tree
from simnet.core.units import Bandwidth, Duration, Size
from simnet.validation import published as sets
from simnet.validation.published import shaped_all_reduces
from tests.helpers.topologies import run_exact

MIB = 2**20
GLOO = Size(2 * MIB)


def network(window: Size | None, latency_s: float = 5e-3, ranks: int = 4) -> Topology:
    cluster = Cluster(
        num_nodes=ranks,
        ranks_per_node=1,
        intra_node=Link(bytes_per_s=Bandwidth(1e11), alpha_s=Duration(0)),
        inter_node=Link(bytes_per_s=Bandwidth(1e9 / 8), alpha_s=Duration(latency_s)),
    )
    return topology.build(cluster, Calibration(inter_node=LinkCalibration(window=window)))


def test_measured_all_reduces_over_latency_are_met_and_without_the_window_are_not() -> None:
    found = sets.run("shaped_all_reduces")
    own = [one for one in found.predictions if one.row.source.startswith(shaped_all_reduces.OWN_RUNS)]
    assert len(own) == 21
    assert np.mean([abs(one.error) for one in own]) < 0.061
    without, _ = found.make_alternatives()
    assert min(one.error for one in without.predictions) < -0.5


@pytest.mark.parametrize("mib", [0.001, 1.0, 64.0])
@pytest.mark.parametrize("make", [ring.all_reduce, tree.all_reduce])
def test_executors_agree_with_a_window(mib: float, make: object) -> None:
    nodes = network(GLOO)
    schedule = make(nodes.group("world"))  # type: ignore[operator]
    folded_s = link_loads.duration_s(nodes, schedule, mib * MIB)
    assert run_exact(nodes, schedule, mib * MIB)[0] == pytest.approx(folded_s, rel=1e-9)


def test_a_latency_is_not_longer_on_a_link_that_gives_less_than_its_nominal_rate() -> None:
    def seconds(nominal: float, efficiency: float) -> float:
        link = Link(bytes_per_s=Bandwidth(nominal), alpha_s=Duration(30e-3))
        cluster = Cluster(num_nodes=4, ranks_per_node=1, intra_node=link, inter_node=link)
        over = LinkCalibration(window=GLOO, efficiency=efficiency)
        nodes = topology.build(cluster, Calibration(inter_node=over))
        return link_loads.duration_s(nodes, ring.all_reduce(nodes.group("world")), 16 * MIB)

    assert seconds(2e8, 0.5) == pytest.approx(seconds(1e8, 1.0), rel=1e-12)


def test_a_wide_window_costs_nothing_and_a_narrow_one_waits_for_every_latency() -> None:
    plain, wide, narrow = (network(window) for window in (None, Size(2**34), Size(1024)))
    group = plain.group("world")
    seconds = [link_loads.duration_s(one, ring.all_reduce(group), 2.0**32) for one in (plain, wide, narrow)]
    rounds = 2 * 3
    assert seconds[1] == pytest.approx(seconds[0], rel=0.01)
    assert seconds[2] == pytest.approx(rounds * 2.0**30 / 1024 * 2 * plain.inter_node.alpha_s, rel=0.01)


@pytest.mark.parametrize("window", [0, 2**35])
def test_a_window_out_of_range_is_refused(window: int) -> None:
    with pytest.raises(ValueError, match=r"window: .*: must be from 1 B to 16 GiB; drop it to have none"):
        LinkCalibration(window=Size(window))
