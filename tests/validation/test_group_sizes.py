"""How bandwidth changes with the number of nodes in published rows, against what the extrapolation assumes."""

import math
import re
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from simnet.calibration.comparison import mean_error, worst_error
from simnet.cluster.network_costs import DOUBLING_FACTOR
from simnet.validation.outcome import Prediction
from simnet.validation.published import hkbu, one_bit_adam
from simnet.validation.study import FreeNumber, Study

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "network.md"
SIGMAS = 1.645


@cache
def studies() -> dict[str, Study]:
    """Return the dense rows of each publication, network and model, with the links before a fit between nodes."""
    found = {}
    for network in one_bit_adam.NETWORKS:
        for name, make in (
            ("Table 1", one_bit_adam.dense_all_reduce),
            ("Fig 5a", one_bit_adam.dense_adam),
        ):
            found[f"1-bit Adam, {name}, {network.label}"] = one_bit_adam.chosen(network, make)
    for network in (*hkbu.NETWORKS, hkbu.FAST_ETHERNET):
        whole = hkbu.bsp(network)
        for model in hkbu.MODELS:
            rows = [row for row in (*whole.train, *whole.held_out) if row.model == model]
            found[f"HKBU, {network.label}, {model}"] = replace(whole, fits=(), held_out=tuple(rows))
    return found


@cache
def changes_by_doubling(publication: str = "") -> tuple[float, ...]:
    """Return the changes of a bandwidth, as logarithms by doubling of the nodes, from four nodes on."""
    found = []
    for name, study in studies().items():
        if not name.startswith(publication):
            continue
        rows = {row.nodes: row for row in (*study.held_out, *study.train)}
        sizes = sorted(nodes for nodes in rows if nodes >= 4)
        rates = {nodes: _efficiency(name, study, rows[nodes]) for nodes in sizes}
        for low, high in pairwise(sizes):
            found.append(math.log(rates[high] / rates[low]) / math.log2(high / low))
    return tuple(found)


def doubling_factor(publication: str = "") -> float:
    """Return the 90 % point of such a change, as a factor, if changes are normal around none."""
    changes = changes_by_doubling(publication)
    return math.exp(SIGMAS * math.sqrt(sum(change**2 for change in changes) / len(changes)))


def _efficiency(name, study, row):
    link = "intra_node" if "100 Gbit IB" in name else "inter_node"
    fit = FreeNumber(key=f"{link}.efficiency", rows=(row,), bounds=(0.005, 1.0))
    return replace(study, fits=(fit,)).value(fit.key)


def beyond_four(name: str) -> tuple[Prediction, ...]:
    """Return what bandwidths fitted on two and four nodes predict beyond, of a set that did not suggest the form."""
    study = studies()[name]
    if name.startswith("1-bit"):
        return tuple(one for one in study.predictions if one.row.nodes > 4)
    link = "intra_node" if "100 Gbit IB" in name else "inter_node"
    four = next(row for row in study.held_out if row.nodes == 4)
    fitted = replace(study, fits=(FreeNumber(key=f"{link}.efficiency", rows=(four,)),))
    return fitted.compare(row for row in study.held_out if row.nodes > 4)


def test_the_interval_of_an_extrapolation_is_as_wide_as_published_bandwidths_change() -> None:
    assert len(changes_by_doubling()) >= 12
    assert doubling_factor() == pytest.approx(DOUBLING_FACTOR, abs=0.01)


def test_published_bandwidths_have_no_common_direction_from_four_nodes_on() -> None:
    changes = changes_by_doubling()
    mean = sum(changes) / len(changes)
    spread = math.sqrt(sum((change - mean) ** 2 for change in changes) / (len(changes) - 1))
    assert abs(mean) < 2 * spread / math.sqrt(len(changes))


def test_the_page_tells_the_errors_of_the_form() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    errors = {
        name: (round(100 * mean_error(found), 1), round(100 * worst_error(found), 1))
        for name in studies()
        for found in [beyond_four(name)]
    }
    for name in (name for name in errors if name.startswith("1-bit Adam")):
        line = next(line for line in lines if line.startswith(f"| {name} |"))
        assert tuple(float(number) for number in re.findall(r"([\d.]+) %", line)) == errors[name], name
    means, worst = zip(*(errors[name] for name in errors if name.startswith("HKBU")), strict=True)
    assert len(means) == 9
    assert f"| HKBU, nine series | {min(means)} to {max(means)} % | {max(worst)} % |" in lines


@pytest.mark.parametrize("publication", ["HKBU", "1-bit Adam"])
def test_the_width_from_one_publication_alone_is_that_of_both(publication: str) -> None:
    # What one publication's intervals are judged by was then not taken from its own rows.
    assert doubling_factor(publication) == pytest.approx(DOUBLING_FACTOR, abs=0.02)
