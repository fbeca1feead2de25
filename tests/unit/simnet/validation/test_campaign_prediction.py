"""Kernels that were timed in several variants of a system, and which of them a strategy runs."""

from typing import Any

from msgspec import convert

from simnet.calibration.measurement_file import MeasurementFile
from simnet.strategies import BinSGDM, DenseAllReduce, EFSignSGD, OneBitAdam, QSGDInf
from simnet.validation import campaign_prediction
from tests.helpers.training_samples import HEAD, SETUP

GATHER, HIERARCHICAL = QSGDInf(topology="gather"), QSGDInf(topology="hierarchical")
SIGNS = EFSignSGD(topology="hierarchical")


def timed(name: str, **options: Any) -> dict[str, Any]:
    labels = {"num_elements": 2**20, "dtype": "float32", "kernels": "torch"} | ({"options": options} if options else {})
    return {"kind": "kernel", "name": name, "setup": 0, "unit": "s", "labels": labels, "values": [1e-3] * 8}


def kept(strategies: list[Any], *series: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    whole = convert({**HEAD, "setups": [SETUP], "series": series}, MeasurementFile)
    (found,) = campaign_prediction.keep_kernels_of([whole], strategies)
    return [(one.name, dict(one.options)) for one in found.series]


def test_variants_of_one_system_are_in_different_sets() -> None:
    strategies = [DenseAllReduce(), GATHER, HIERARCHICAL, SIGNS, OneBitAdam(), BinSGDM(), BinSGDM(overlap=False)]
    assert campaign_prediction.variants(strategies) == [[GATHER, SIGNS, OneBitAdam()], [HIERARCHICAL]]
    assert campaign_prediction.variants([DenseAllReduce(), BinSGDM()]) == [[]]


def test_a_strategy_keeps_the_kernels_of_its_topology() -> None:
    series = [timed("copy")]
    series += [timed("qsgd_inf_encode", bits=4, topology=one) for one in ("hierarchical", "gather", "scatter_reduce")]
    series += [timed("ef_sign_sgd_encode", topology=one) for one in ("gather", "hierarchical")]
    assert kept([GATHER, SIGNS], *series) == [
        ("copy", {}),
        ("qsgd_inf_encode", {"bits": 4, "topology": "gather"}),
        ("ef_sign_sgd_encode", {"topology": "hierarchical"}),
    ]
    assert kept([HIERARCHICAL], *series)[1] == ("qsgd_inf_encode", {"bits": 4, "topology": "hierarchical"})


def test_kernels_without_a_topology_are_those_of_the_systems_own() -> None:
    series = [timed("qsgd_inf_encode", bits=4, topology="scatter_reduce"), timed("qsgd_inf_encode", bits=4)]
    assert kept([QSGDInf()], *series) == kept([GATHER], *series) == [("qsgd_inf_encode", {"bits": 4})]
    apart = [timed("qsgd_inf_encode", bits=4), timed("qsgd_inf_encode", bits=4, topology="hierarchical")]
    assert kept([HIERARCHICAL], *apart) == [("qsgd_inf_encode", {"bits": 4, "topology": "hierarchical"})]
    other = [timed("qsgd_inf_encode", bits=8), timed("qsgd_inf_encode", bits=4)]
    assert kept([QSGDInf()], *other) == [("qsgd_inf_encode", {"bits": 4})], "other options count, too"


def test_kernels_timed_once_stay_whatever_their_options() -> None:
    assert kept([], timed("qsgd_inf_encode", bits=8)) == [("qsgd_inf_encode", {"bits": 8})]
    assert kept([GATHER], timed("qsgd_inf_encode", bits=8)) == [("qsgd_inf_encode", {"bits": 8})]


def test_options_that_a_kernel_was_timed_with_count_once_each() -> None:
    series = [timed("qsgd_inf_encode", bits=8), timed("qsgd_inf_encode", bits=4), timed("copy"), timed("copy")]
    whole = convert({**HEAD, "setups": [SETUP], "series": series}, MeasurementFile)
    assert {name: len(one) for name, one in campaign_prediction.timed_options([whole, whole]).items()} == {
        "qsgd_inf_encode": 2,
        "copy": 1,
    }
