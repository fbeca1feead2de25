"""The shipped estimates against a measured card: which estimate, scaled to what, with which intervals."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from simnet.calibration.card_calibration import CardFit
from simnet.calibration.card_folder import CardAbout, CardFacts, CardFolder
from simnet.calibration.compute_rows import MeasuredPass
from simnet.calibration.fit import FittedPart
from simnet.calibration.kernels import TimedKernel
from simnet.core import files
from simnet.validation import card_estimates

COPY = 1.8e12
FIT = CardFit(
    parts=(
        FittedPart(
            table={"memory_bandwidth": "1800 GB/s", "kernel_launch": "4 us", "backward_slowdown": 1.5},
            intervals={"backward_slowdown": (0.9, 1.1)},
        ),
    ),
    left_out=(),
)


def folder(label: str) -> CardFolder:
    about = CardAbout(what="simnet card", format=1, device="cuda", card=CardFacts(name=label))
    return CardFolder(path=Path("gpu"), about=about, files={}, label=label)


def kernel(name: str, numel: float, seconds: float) -> TimedKernel:
    return TimedKernel(kernel=name, num_elements=numel, num_vectors=1, samples_s=np.array([seconds] * 3))


@pytest.mark.parametrize(
    ("label", "name", "is_of_card"),
    [
        ("A100-80GB", "a100_tcp_estimate", True),
        ("A100-40GB", "a100_tcp_estimate", False),
        ("V100-32GB", "v100_tcp_estimate", True),
        ("H200", "a100_tcp_estimate", False),
    ],
)
def test_the_estimate_of_another_card_is_scaled_to_the_copies(label: str, name: str, is_of_card: bool) -> None:
    found = card_estimates.shipped_estimate(folder(label), FIT)
    assert (found.name, found.is_of_card) == (name, is_of_card)
    shipped = found.shipped.memory_bytes_per_s
    assert found.calibration.memory_bytes_per_s == (shipped if is_of_card else COPY)
    assert ("memory_bandwidth" in found.calibration.intervals) is is_of_card
    values = card_estimates.value_estimates(found, FIT)
    assert ("memory_bandwidth" in values) is is_of_card
    if label == "A100-80GB":
        inside = {"memory_bandwidth": True, "kernel_launch": True, "backward_slowdown": False}
        assert {key: one.is_inside for key, one in values.items()} == inside
        assert values["backward_slowdown"].interval == (1.0, 1.4)


def kernel_rows(label: str, rows: Sequence[TimedKernel]) -> list[card_estimates.KernelEstimate]:
    return card_estimates.kernel_estimates(rows, card_estimates.shipped_estimate(folder(label), FIT), COPY)


def test_a_kernel_is_judged_by_the_interval_that_draws_of_the_estimate_give() -> None:
    numel, least_s = 2**28, 24 * 2**28 / COPY
    fast, slow, copy = (
        kernel("binsgdm_update", numel, least_s),
        kernel("binsgdm_update", numel, 30 * least_s),
        kernel("copy", numel, 1.0),
    )
    found = kernel_rows("H200", [fast, slow, copy])
    assert [row.kernel for row in found] == ["binsgdm_update"] * 2, "copies give the bandwidth"
    for row in found:
        assert row.predicted == pytest.approx(5e-6 + least_s / 0.22)
        assert row.interval is not None
        low, high = row.interval
        # Over many elements the launch counts little: the interval is that of codec_efficiency, 0.057 to 0.9.
        assert low == pytest.approx(least_s / 0.9, rel=0.15)
        assert high == pytest.approx(least_s / 0.057, rel=0.25)
    assert [row.ratio for row in found] == [pytest.approx(1.0), pytest.approx(30.0)]
    assert [row.is_inside for row in found] == [False, False]
    assert kernel_rows("H200", [kernel("binsgdm_update", numel, 1.3 * least_s)])[0].is_inside


def test_a_measured_step_stands_beside_the_rows_of_its_card_or_of_the_reference() -> None:
    halves = np.full(3, 0.05)
    passes = [
        MeasuredPass(model="resnet50", precision=precision, batch=256, forward_s=halves, backward_s=halves)
        for precision in ("tf32", "amp", "bf16")
    ]
    shipped = files.read("workloads", "resnet50")
    rows = shipped["compute"]
    assert isinstance(rows, list)
    own = {**rows[0], "kind": "measured", "samples_per_s": 1.0, "gpu": "H200"}  # no estimate
    given = {"resnet50": {**shipped, "compute": [*rows, own]}}
    for label, gpu, rate in (("V100-32GB", "V100-32GB", 1156), ("H200", "A100-80GB", 2470)):
        estimate = card_estimates.shipped_estimate(folder(label), FIT)
        found = {
            one.measured_pass.precision: one for one in card_estimates.step_estimates(passes, estimate, label, given)
        }
        assert "bf16" not in found, "no shipped row of it"
        assert (found["amp"].gpu, found["amp"].kind) == (gpu, "published")
        # A published step holds the optimizer as well, half a millisecond or so of it.
        assert 256 / rate - 2e-3 < found["amp"].predicted < 256 / rate
        # The last layers, whose gradients come first, have most of the elements and few of the FLOPs.
        assert found["amp"].estimated_half_ready is not None
        assert 0 < found["amp"].estimated_half_ready < 0.5
        assert found["tf32"].gpu == "A100-80GB", "V100 has no tf32"
        assert found["amp"].measured == pytest.approx(0.1)
