"""Measurement files that no machine has made."""

from simnet.calibration.measurement_file import WHAT, Hardware, MeasurementFile, Series, Setup, Software


def setup(nodes: int, per_node: int, nic_bytes_per_s: float | None) -> Setup:
    return Setup(
        backend="gloo", device="cpu", num_nodes=nodes, ranks_per_node=per_node, threads_per_rank=1, ranks_on_machine=1,
        nic_bytes_per_s=nic_bytes_per_s,
    )  # fmt: skip


def measurements(series: tuple[Series, ...], setups: tuple[Setup, ...]) -> MeasurementFile:
    return MeasurementFile(
        what=WHAT,
        format=1,
        created="2026-01-01T00:00:00+00:00",
        command="made",
        hardware=Hardware(machine="x86_64", processor="", cores=2, memory_bytes=1),
        software=Software(system="Linux", python="3.11", torch="2.13"),
        setups=setups,
        series=series,
    )
