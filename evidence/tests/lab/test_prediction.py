"""Kernels that were timed in several variants of a system, and which of them a strategy runs."""

from typing import Any

from msgspec import convert

from evidence.lab import prediction
from simnet.calibration.measurement_file import MeasurementFile
from simnet.strategies import BinSGDM, DenseAllReduce, EFSignSGD, OneBitAdam, QSGDInf
from tests.helpers.training_samples import HEAD, SETUP

GATHER, HIERARCHICAL = QSGDInf(topology="gather"), QSGDInf(topology="hierarchical")
SIGNS = EFSignSGD(topology="hierarchical")


def timed(name: str, **options: Any) -> dict[str, Any]:
    labels = {"num_elements": 2**20, "dtype": "float32", "kernels": "torch"} | ({"options": options} if options else {})
    return {"kind": "kernel", "name": name, "setup": 0, "unit": "s", "labels": labels, "values": [1e-3] * 8}


def kept(strategies: list[Any], *series: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    whole = convert({**HEAD, "setups": [SETUP], "series": series}, MeasurementFile)
    (found,) = prediction.keep_kernels_of([whole], strategies)
    return [(one.name, dict(one.options)) for one in found.series]


def test_variants_of_one_system_are_in_different_sets() -> None:
    strategies = [DenseAllReduce(), GATHER, HIERARCHICAL, SIGNS, OneBitAdam(), BinSGDM(), BinSGDM(overlap=False)]
    assert prediction.variants(strategies) == [[GATHER, SIGNS, OneBitAdam()], [HIERARCHICAL]]
    assert prediction.variants([DenseAllReduce(), BinSGDM()]) == [[]]


def test_kernels_timed_once_stay_whatever_their_options() -> None:
    assert kept([], timed("qsgd_inf_encode", bits=8)) == [("qsgd_inf_encode", {"bits": 8})]
    assert kept([GATHER], timed("qsgd_inf_encode", bits=8)) == [("qsgd_inf_encode", {"bits": 8})]
