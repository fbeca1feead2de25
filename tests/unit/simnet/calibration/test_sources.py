"""Files of others: kernels as measured, iperf3 and torch.profiler."""

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simnet.calibration import calibration_file, fit_files, iperf3, kernels, sources
from simnet.calibration.fit import FittedPart
from simnet.calibration.kernels import TimedKernel
from simnet.calibration.measurement_file import Series
from simnet.calibration.sources import Content, Kind, Sources
from simnet.cluster.kernel_times import KernelTime
from simnet.core.files import gunzipped
from simnet.strategies.base import every_kernel
from simnet.validation import shipped_parts
from tests.helpers.golden import IPERF3
from tests.helpers.measurement_samples import measurements, setup
from tests.helpers.refusals import refused

HERE = Path("x.json")
END = {"sum_received": {"bits_per_second": 2e10}}


def event(name: str, cat: str, start_us: float, us: float, **args: object) -> dict[str, object]:
    return {"ph": "X", "name": name, "cat": cat, "ts": start_us, "dur": us, "pid": 0, "tid": 0, "args": args}


# Made by the format that PyTorch documents for NCCL, not recorded: no GPU was at hand.
NCCL: dict[str, Any] = {
    "deviceProperties": [{"name": "NVIDIA H200"}],
    "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8},
    "traceEvents": [
        event("ProfilerStep#3", "user_annotation", 0, 1000),
        event("DistributedDataParallel.forward", "gpu_user_annotation", 100, 200),
        event("Optimizer.step#AdamW.step", "gpu_user_annotation", 850, 100),
        event("gemm_forward", "kernel", 100, 200),
        event("gemm_backward", "kernel", 300, 400),
        event("multi_tensor_adam", "kernel", 850, 100),
        event(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "kernel", 600, 200,
            **{"Collective name": "allreduce", "In msg nelems": 1000, "dtype": "BFloat16", "Group size": 8},
        ),
        {"ph": "M", "name": "process_name"},
    ],
}  # fmt: skip


def times(kernel: str, time_s: Callable[[float], float], vectors: int = 1) -> list[TimedKernel]:
    rng = np.random.default_rng(2)
    return [
        TimedKernel(
            kernel=kernel,
            num_elements=float(size),
            num_vectors=vectors,
            samples_s=time_s(float(size)) * np.exp(rng.normal(0, 0.02, 9)),
        )
        for size in 2 ** np.arange(10, 24)
    ]


def fitted_kernel(rows: list[TimedKernel], draws: int = 20) -> tuple[FittedPart, KernelTime]:
    (part,) = kernels.fit_kernels(rows, 0.1, draws=draws)
    return part, calibration_file.as_calibration(part.table).kernels[rows[0].kernel]


def test_the_end_of_a_cache_is_found_where_a_straight_line_explains_badly() -> None:
    rows = times("quantize", lambda size: 1e-6 + (2e-10 if size <= 2**18 else 2e-9) * size)
    part, found = fitted_kernel(rows)
    assert found.cached_elements == 2**18
    assert float(found.s_per_element) == pytest.approx(2e-10, rel=0.05)
    assert float(found.beyond_s_per_element or 0) == pytest.approx(2e-9, rel=0.05)
    assert found.seconds(2**22) == pytest.approx(1e-6 + 2e-9 * 2**22, rel=0.05)
    assert "kernels.quantize.time_per_element_beyond" in part.intervals
    rng = np.random.default_rng(4)
    rows = [
        replace(row, samples_s=row.samples_s * np.exp(rng.normal(0, 0.2)))
        for row in times("quantize", lambda size: 1e-9 * size)
    ]
    low, high = fitted_kernel(rows, draws=40)[0].intervals["kernels.quantize.time_per_element"]
    assert low < 0.85, "what a further row would take"
    assert high > 1.15
    with refused("kernel quantize: at least 3 sizes"):
        fitted_kernel(rows[:2])
    with refused("time must grow with the number of elements"):
        fitted_kernel(times("quantize", lambda size: 1 / size))


@pytest.mark.parametrize(("wanted", "nanoseconds"), [(None, 0.2), (2, 0.5), (3, 0.5), (7, 0.2)])
def test_vectors_are_those_that_the_layout_gives_and_else_the_most(wanted: int | None, nanoseconds: float) -> None:
    rows = times("merge", lambda size: 5e-10 * size, 2) + times("merge", lambda size: 2e-10 * size, 8)
    part, found = fitted_kernel([replace(row, layout_vectors=wanted) for row in rows])
    assert found.s_per_element == pytest.approx(nanoseconds * 1e-9, rel=0.05)
    if wanted is None:
        assert part.notes == ("kernel merge: fitted to 8 vectors at once; fewer take longer per element",)
        assert "0.2" in part.shown["merge"]


def test_a_shaped_merge_is_fitted_to_all_numbers_of_vectors() -> None:
    rows = times("merge_shaped", lambda size: 1e-6 + (2e-10 + 8e-10 / 2) * size, 2)
    part, found = fitted_kernel(rows + times("merge_shaped", lambda size: 1e-6 + (2e-10 + 8e-10 / 8) * size, 8))
    assert part.notes == ()
    assert (found.s_per_element, found.s_per_result) == (pytest.approx(2e-10, rel=0.05), pytest.approx(8e-10, rel=0.05))
    assert {"kernels.merge_shaped.time_per_element", "kernels.merge_shaped.time_per_result"} <= part.intervals.keys()
    assert "ns per element of the result" in part.shown["merge_shaped"]
    _, alone = fitted_kernel(times("merge_shaped", lambda size: 3e-10 * size, 8))
    assert (alone.s_per_element, alone.s_per_result) == (pytest.approx(3e-10, rel=0.05), None)


def test_measured_kernels_are_taken_by_the_names_of_the_simulator_in_one_implementation() -> None:
    def series(name: str, implementation: str, **more: int) -> Series:
        labels: dict[str, Any] = {"num_elements": 1024, "dtype": "float32", "kernels": implementation, **more}
        return Series(kind="kernel", name=name, setup=0, unit="s", labels=labels, values=(1e-3,))

    given = (
        series("update_", "reference"),
        series("update_", "cpu"),
        series("merge", "cpu", num_vectors=8),
        series("odd", "x"),
    )
    found = kernels.select_kernels([measurements(given, (setup(1, 1, None),))])
    assert [(one.kernel, one.num_elements) for one in found] == [("binsgdm_update", 1024.0), ("merge", 8192.0)]
    assert set(kernels.SIMULATED_NAMES.values()) <= every_kernel().keys()


def read(path: Path) -> dict[str, Any]:
    return sources.Content(path, gunzipped(path.read_bytes(), path)).table


def test_iperf3_gives_the_efficiency_and_its_spread() -> None:
    slow = shipped_parts.cluster("generic_25gbit")
    fitted = iperf3.fit_goodput(read(IPERF3), IPERF3, slow)
    link = fitted.table["inter_node"]
    assert isinstance(link, dict)
    assert link["efficiency"] == pytest.approx(20.776 / 25, abs=1e-4)
    low, high = fitted.intervals["inter_node.efficiency"]
    assert 0.9 < low <= 1 <= high < 1.1
    assert fitted.shown["round trip under load"] == "62 us"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"error": "unable to connect"}, "iperf3 failed with 'unable to connect'"),
        ({"end": {}}, "end.sum_received: missing ... : give the whole output of iperf3 -J over TCP"),
        ({"end": []}, "end: []: write a table"),
        ({"end": {"sum_received": {"bits_per_second": 0}}}, "must be a number above 0"),
        ({"end": {**END, "streams": {"a": 1}}}, "end.streams: ... : write a list"),
        ({"end": {**END, "streams": [5]}}, "end.streams.0: 5: write a table"),
        ({"end": {**END, "streams": [{"sender": {"mean_rtt": "62"}}]}}, "mean_rtt: '62': write a number"),
        ({"intervals": [{}]}, "intervals.0.sum: missing"),
        ({"intervals": 5}, "intervals: 5: write a list"),
        ({"end": {"sum_received": {"bits_per_second": 9e10}}}, "exceeds the NICs of the cluster"),
        ({"start": {"test_start": {"target_bitrate": 5e8}}}, "-b 0.5 Gbit/s: a set rate says nothing of the link"),
        ({"start": {"target_bitrate": 5e8}}, "-b 0.5 Gbit/s: a set rate"),
        ({"start": {"test_start": {"fqrate": 1e9}}}, "--fq-rate 1 Gbit/s: a set rate"),
        ({"start": {"test_start": {"protocol": "UDP"}}, "end": {"sum": {}}}, "over UDP sends at a set rate"),
        ({"start": {"test_start": {"target_bitrate": "x"}}}, "target_bitrate: 'x': write a number"),
    ],
)
def test_what_iperf3_has_not_measured_is_refused(change: dict[str, object], message: str) -> None:
    with refused(*message.split(" ... ")):
        iperf3.fit_goodput({**read(IPERF3), **change}, HERE, shipped_parts.cluster("generic_25gbit"))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.json", b"hello", "not JSON: Expecting"),
        ("a.json.gz", gzip.compress(b"{}", mtime=0)[:-4], "damaged or incomplete gzip"),
        ("a.json.gz", gzip.compress(b"{}", mtime=0)[:10] + b"\xff\xff\xff\xff", "damaged or incomplete gzip"),
        ("a.json", b"[1]", "must hold one JSON object"),
        ("a.json", b'{"a": 1}', "unknown kind of file; give output of nccl-tests, a measurement file, iperf3 -J"),
        ("a.log", b"hello", "unknown kind of file"),
    ],
)
def test_files_of_no_known_kind_are_refused(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with refused(message):
        sources.read([tmp_path / name])


def test_a_further_kind_is_a_row_and_its_reader(tmp_path: Path) -> None:
    def rate(content: Content) -> list[Callable[[object], FittedPart]]:
        return [lambda _: FittedPart(table={"inter_node": {"efficiency": float(content.text.split()[1])}})]

    path = tmp_path / "osu.txt"
    path.write_text("OSU 0.5")
    kind = Kind("a table of OSU", lambda content: content.text.startswith("OSU"), "alone", rate)
    known = sources.read([path], [*sources.KINDS, kind])
    parts = fit_files.fit_parts(known, Sources(), Sources(), fit_files.FitOptions())
    assert calibration_file.merge(parts, {}) == {"inter_node": {"efficiency": 0.5}}
    with refused("give a table of OSU"):
        sources.read([IPERF3], [kind])
