"""The kernels of a scatter-reduce: what a merge takes that was timed, and one where encoding and decoding were."""

import pytest

from simnet.cluster.hardware import Calibration
from simnet.cluster.kernel_times import KernelTime
from simnet.core.units import Bandwidth, Duration, Size
from simnet.engine.result import RunResult
from simnet.engine.scenario import RunSettings, Scenario
from simnet.engine.simulation import simulate
from simnet.strategies import QSGD, ByteGrad, CompressingStrategy, TopK
from simnet.workload.workload import Workload
from tests.helpers.topologies import cluster

ELEMENTS = 2**22
WORKLOAD = Workload(
    gradient_bytes=Size(4 * ELEMENTS), forward_s=Duration(0.04), backward_s=Duration(0.08), optimizer_s=Duration(0.0)
)
ENCODE = KernelTime(launch_s=Duration(1e-5), s_per_element=Duration(4e-10))
DECODE = KernelTime(launch_s=Duration(2e-5), s_per_element=Duration(1e-10))
FREE = KernelTime(s_per_element=Duration(1e-30))


def outcome(strategy: CompressingStrategy, num_nodes: int = 4, **calibration: object) -> RunResult:
    """Return the outcome of one bucket without the copies of pieces."""
    kernels = {"gather_gradients": FREE, **calibration.pop("kernels", {})}
    return simulate(
        Scenario(
            strategy=strategy,
            workload=WORKLOAD,
            cluster=cluster(num_nodes, 1),
            calibration=Calibration(kernels=kernels, **calibration),
            run=RunSettings(),
        )
    )


def fused(kind: type[CompressingStrategy], **options: object) -> CompressingStrategy:
    return kind(bucketing="fused", overlap=False, topology="scatter_reduce", **options)


@pytest.mark.parametrize("num_nodes", [2, 8])
def test_a_merge_that_was_not_decodes_the_pieces_of_all_and_encodes_its_own(num_nodes):
    timed = {"qsgd_encode": ENCODE, "qsgd_decode": DECODE}
    run = outcome(fused(QSGD), num_nodes, kernels=timed, memory_bytes_per_s=Bandwidth(1e9))
    encode_s, decode_s = 1e-5 + 4e-10 * ELEMENTS, 2e-5 + 1e-10 * ELEMENTS
    own_s = 1e-5 + 4e-10 * ELEMENTS / num_nodes
    assert run.result.breakdown.encode_s == pytest.approx(encode_s + decode_s + own_s)
    assert run.result.breakdown.decode_s == pytest.approx(decode_s)
    assert (
        "kernel qsgd_merge was not timed: it takes what qsgd_decode takes for each vector and qsgd_encode for the "
        "result: measure it" in run.notes
    )


@pytest.mark.parametrize(
    ("strategy", "calibration", "elements_s"),
    [
        # Of few kept elements few are decoded.
        (
            fused(TopK, ratio=0.01),
            {"kernels": {"top_k_encode": ENCODE, "top_k_decode": DECODE}},
            4e-10 + 1e-10 * 0.01 + 4e-10 / 4 + (1e-5 + 2e-5 + 1e-5) / ELEMENTS,
        ),
        # Where decoding alone was timed a merge takes as long for as many bytes.
        (fused(ByteGrad), {"kernels": {"byte_grad_decode": DECODE}}, 2e-5 / ELEMENTS + 1e-10 * (9 + 9 / 4) / 9),
        # By bytes a merge reads all codes and encodes one piece.
        (fused(ByteGrad), {"memory_bytes_per_s": Bandwidth(1e12), "codec_efficiency": 1.0}, (9 + 9 + 9 / 4) / 1e12),
    ],
)
def test_a_merge_takes_what_its_parts_take(strategy, calibration, elements_s):
    run = outcome(strategy, 4, **calibration)
    assert run.result.breakdown.encode_s == pytest.approx(elements_s * ELEMENTS)
