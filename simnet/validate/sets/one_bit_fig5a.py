"""1-bit Adam, Fig 5a: throughput of the compression stage, codec and one network cost calibrated on two points each."""

from collections.abc import Callable
from itertools import combinations

from msgspec.structs import replace

from simnet.hardware import Calibration, KernelTime
from simnet.numeric import root
from simnet.strategies import OneBitAdam
from simnet.units import Duration
from simnet.validate import parts
from simnet.validate.measurements import Measurements, Row
from simnet.validate.outcome import Alternative, Limit, Outcome, Parameter, Prediction, alternative, mean_error
from simnet.validate.sets import one_bit_adam, one_bit_table1
from simnet.validate.sets.one_bit_adam import ETHERNET, INFINIBAND, NETWORKS, Network

METHOD = "1-bit Adam"
TARGET = Limit(mean=0.12)
COUNTED_IN_COMPRESS = ("momentum", "merge", "server_residual", "decompress")
"""Kernels of the codec without a time of their own, since the fitted `compress` is all of it."""
UNIT_S = 1e-4
"""A cost at which its effect is measured."""
WithCost = Callable[[Calibration, float], Calibration]

ABOUT = """\
The compression stage at 16 samples a GPU: forward, backward and step of Table 1 (mean of the rows of the same \
network), then compress, all-to-all and all-gather of 1 bit a parameter over all ranks, not overlapped. The \
bandwidth between nodes is that of the set above; on Ethernet the links inside a node are fitted to the single-node \
all-reduce of Table 1. Two points a network are left for what the dense rows cannot show. The single-node point \
gives the codec (all its kernels as one). The largest point gives one cost of talking to everyone at once, by the \
software that the two networks run: on Ethernet, where all ranks post sends to all others through MPI over TCP, a \
polling cost that grows with the square of the posted sends; on InfiniBand with RDMA, the fraction of the bandwidth \
that the all-to-all reaches. All points between are predicted."""
MISSES = """\
Within target. Ethernet is slow by {slow} between the fitted points: the measured communication is flat up to 64 GPUs \
and then grows quadratically, and whether that is polling or incast cannot be told from these points. With the plain \
linear cost per message that one would write down first, the choice of calibration points decides whether the target \
is met (table of alternatives): {linear} of the {pairs} pairs of points on Ethernet meet it, {free} of them by \
fitting no such cost at all, against {polling} with polling. The codec fitted on Ethernet takes {codec_ratio:.1f} \
times that on InfiniBand on the same kind of GPU, presumably since it stages through the host; one set of numbers \
does not serve both."""
CAVEAT = """\
with a polling cost, a form chosen after seeing the rows: with a plain linear cost a message the choice of the \
calibration points decides ({linear} of {pairs} pairs on Ethernet are within target, {polling} with polling)"""


def run(rows: Measurements, *, alternatives: bool) -> Outcome:
    """Calibrate on the smallest and the largest point of each network, predict the points between."""
    fitted = {network: fit(rows, network) for network in NETWORKS}
    found = {
        network: predictions(rows, network, calibration, _between(rows, network))
        for network, calibration in fitted.items()
    }
    pairs = _pairs_met(rows)
    return Outcome(
        name="one_bit_fig5a",
        title="1-bit Adam, Fig 5a: compression stage",
        unit="ms",
        parameters=tuple(p for network in NETWORKS for p in parameters(rows, network, fitted[network])),
        predictions=tuple(prediction for these in found.values() for prediction in these),
        target=TARGET,
        bound=TARGET,
        about=ABOUT,
        misses=_misses(pairs, fitted, found[ETHERNET]),
        alternatives=_alternatives(rows) if alternatives else (),
        caveat=CAVEAT.format(**pairs),
    )


def base(rows: Measurements, network: Network) -> Calibration:
    """Return the network's calibration as the dense rows give it, with Adam's step as the only kernel."""
    law = one_bit_table1.laws(rows, network)[0]
    dense = parts.with_efficiency(one_bit_table1.bare(network), "inter_node", law.efficiency)
    if network is ETHERNET:
        dense = one_bit_table1.with_single_node(rows, network, dense)
    step_s = one_bit_adam.compute(rows, network).optimizer_s
    update = KernelTime(s_per_element=Duration(step_s / one_bit_adam.NUM_ELEMENTS))
    return replace(dense, kernels={"adam_update": update})


def fit(rows: Measurements, network: Network) -> Calibration:
    """Return the calibration with codec and network cost fitted."""
    single, largest = calibration_rows(rows, network)
    dense = base(rows, network)
    if network is ETHERNET:
        return fit_pair(rows, network, dense, (single, largest), with_poll)
    codec = fit_codec(rows, network, dense, single)
    part = root(lambda e: excess_s(rows, network, with_all_to_all(codec, e), largest), 0.05, 1.0)
    return with_all_to_all(codec, part)


def calibration_rows(rows: Measurements, network: Network) -> tuple[Row, Row]:
    """Return the single-node and the largest point."""
    found = one_bit_adam.figure_rows(rows, network, METHOD)
    return min(found, key=lambda row: row.gpus), max(found, key=lambda row: row.gpus)


def with_codec(calibration: Calibration, s_per_element: float) -> Calibration:
    """Return a calibration whose codec, as one kernel, takes so long an element."""
    codec = KernelTime(s_per_element=Duration(s_per_element))
    counted = dict.fromkeys(COUNTED_IN_COMPRESS, KernelTime(s_per_element=Duration(0)))
    return replace(calibration, kernels=calibration.kernels | counted | {"compress": codec})


def with_poll(calibration: Calibration, poll_s: float) -> Calibration:
    """Return a calibration with this polling cost."""
    return replace(calibration, poll_s=Duration(poll_s))


def with_message(calibration: Calibration, message_s: float) -> Calibration:
    """Return a calibration with this cost of a posted send."""
    return replace(calibration, message_s=Duration(message_s))


def with_all_to_all(calibration: Calibration, efficiency: float) -> Calibration:
    """Return a calibration whose all-to-all reaches this part of the bandwidth."""
    return replace(calibration, all_to_all_efficiency=efficiency)


def fit_codec(rows: Measurements, network: Network, calibration: Calibration, row: Row) -> Calibration:
    """Return the calibration with the codec that meets a row."""
    missing_s = -excess_s(rows, network, calibration, row)
    return with_codec(calibration, missing_s / one_bit_adam.NUM_ELEMENTS)


def fit_pair(
    rows: Measurements, network: Network, dense: Calibration, pair: tuple[Row, Row], with_cost: WithCost
) -> Calibration:
    """Return the calibration whose codec and cost meet two rows, neither below 0; both act linearly on the iteration.

    Args:
        rows: all measurements.
        network: of the two rows.
        dense: the calibration without codec and cost.
        pair: the rows to meet.
        with_cost: sets the cost [s].
    """
    missing = [-excess_s(rows, network, dense, row) for row in pair]
    effect = [m + excess_s(rows, network, with_cost(dense, UNIT_S), row) for m, row in zip(missing, pair, strict=True)]
    cost = max(UNIT_S * (missing[1] - missing[0]) / (effect[1] - effect[0]), 0.0)
    codec_s = max(missing[0] - effect[0] * cost / UNIT_S, 0.0)
    return with_codec(with_cost(dense, cost), codec_s / one_bit_adam.NUM_ELEMENTS)


def excess_s(rows: Measurements, network: Network, calibration: Calibration, row: Row) -> float:
    """Return predicted minus measured seconds of a row."""
    return predict_s(rows, network, calibration, row) - measured_s(row)


def predict_s(rows: Measurements, network: Network, calibration: Calibration, row: Row) -> float:
    """Return the simulated seconds of an iteration of the compression stage."""
    found = one_bit_adam.compute(rows, network)
    return one_bit_adam.simulated(calibration, found, nodes=row.nodes, strategy=OneBitAdam(agreement=False)).iteration_s


def measured_s(row: Row) -> float:
    """Return the seconds of an iteration that a row's throughput means."""
    return row.gpus * one_bit_adam.BATCH / row.value


def predictions(
    rows: Measurements, network: Network, calibration: Calibration, wanted: tuple[Row, ...]
) -> tuple[Prediction, ...]:
    """Return predicted against measured of these rows."""
    return tuple(
        Prediction(
            series=network.label,
            label=f"{network.label}, {row.gpus} GPUs",
            row=row,
            predicted=predict_s(rows, network, calibration, row),
            measured=measured_s(row),
        )
        for row in wanted
    )


def parameters(rows: Measurements, network: Network, fitted: Calibration) -> tuple[Parameter, ...]:
    """Return what the calibration was fitted to, value by value."""
    single, largest = calibration_rows(rows, network)
    found = one_bit_adam.compute(rows, network)
    update = fitted.kernels["adam_update"].s_per_element
    codec = fitted.kernels["compress"].s_per_element
    codec_text = f"{1e9 * codec:.4f} ns an element ({1e3 * codec * one_bit_adam.NUM_ELEMENTS:.0f} ms)"
    steps = tuple(row for row in found.rows if row.metric == "step")
    return (
        one_bit_adam.compute_parameter(found),
        one_bit_table1.parameter(rows, network, one_bit_table1.laws(rows, network)[0]),
        *(_intra_parameter(rows, network, fitted) if network is ETHERNET else ()),
        _parameter(network, "kernels.adam_update", update, f"{1e9 * update:.4f} ns an element", "mean", *steps),
        _parameter(network, "kernels.compress", codec, codec_text, "meets the row", single),
        _cost_parameter(network, fitted, largest),
    )


def _intra_parameter(rows: Measurements, network: Network, fitted: Calibration) -> tuple[Parameter, ...]:
    efficiency = fitted.intra_node.efficiency
    assert isinstance(efficiency, float)
    text = f"{efficiency:.4f} ({efficiency * 126:.1f} Gbit/s)"
    row = one_bit_table1.single_node_row(rows, network)
    return (_parameter(network, "intra_node.efficiency", efficiency, text, "meets the row", row),)


def _cost_parameter(network: Network, fitted: Calibration, row: Row) -> Parameter:
    if network is INFINIBAND:
        part = fitted.all_to_all_efficiency
        return _parameter(network, "all_to_all_efficiency", part, f"{part:.4f}", "meets the row", row)
    text = f"{1e6 * fitted.poll_s:.3f} us"
    return _parameter(network, "poll_cost", fitted.poll_s, text, "meets the row", row)


def _parameter(network: Network, key: str, value: float, text: str, how: str, *rows: Row) -> Parameter:
    return Parameter(part=network.part, key=key, value=value, text=text, how=how, rows=rows)


def _between(rows: Measurements, network: Network) -> tuple[Row, ...]:
    found = one_bit_adam.figure_rows(rows, network, METHOD)
    return tuple(row for row in found if row not in calibration_rows(rows, network))


def _misses(pairs: dict[str, int], fitted: dict[Network, Calibration], ethernet: tuple[Prediction, ...]) -> str:
    codecs = [fitted[network].kernels["compress"].s_per_element for network in NETWORKS]
    slow = f"up to {max(prediction.error for prediction in ethernet):.0%}"
    return MISSES.format(**pairs, slow=slow, codec_ratio=codecs[0] / codecs[1])


def _pairs_met(rows: Measurements) -> dict[str, int]:
    """Return how many pairs of points on Ethernet meet the target, by the form of the cost, and how many there are."""
    linear, polling = (_pairs(rows, ETHERNET, cost) for cost in (with_message, with_poll))
    assert TARGET.mean is not None
    return {
        "pairs": len(linear),
        "linear": sum(error <= TARGET.mean for _, error in linear),
        "free": sum(error <= TARGET.mean for cost, error in linear if cost == 0),
        "polling": sum(error <= TARGET.mean for _, error in polling),
    }


def _pairs(rows: Measurements, network: Network, with_cost: WithCost) -> list[tuple[float, float]]:
    """Return the fitted cost [s] and the mean error on the other points for every pair of calibration points."""
    points = one_bit_adam.figure_rows(rows, network, METHOD)
    dense = base(rows, network)
    found = []
    for pair in combinations(points, 2):
        fitted = fit_pair(rows, network, dense, pair, with_cost)
        others = tuple(row for row in points if row not in pair)
        found.append((fitted.message_s + fitted.poll_s, mean_error(predictions(rows, network, fitted, others))))
    return found


def _alternatives(rows: Measurements) -> tuple[Alternative, ...]:
    """Return the plain linear cost of a message, by the pair of points that it is calibrated on."""
    return tuple(_linear(rows, smaller) for smaller in (0, 1))


def _linear(rows: Measurements, smaller: int) -> Alternative:
    found: list[Prediction] = []
    for network in NETWORKS:
        points = one_bit_adam.figure_rows(rows, network, METHOD)
        pair = points[smaller], points[-1]
        fitted = fit_pair(rows, network, base(rows, network), pair, with_message)
        found += predictions(rows, network, fitted, tuple(row for row in points if row not in pair))
    point = "single-node" if smaller == 0 else "two-node"
    return alternative("linear cost per message", f"{point} and largest point of each network", tuple(found))
