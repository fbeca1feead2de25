"""What is measured at the ranks that will train: what cores take for messages, and how much backward is slowed."""

from pathlib import Path

import numpy as np
import pytest

from simnet.calibration import fit_files, kernels, network, sources
from simnet.calibration.fit import FittedPart, checked_residuals
from simnet.calibration.measurement_file import MeasurementFile, Series
from simnet.calibration.network import TimedCollective
from simnet.core.units import Duration
from tests.helpers.measurement_samples import measurements, setup
from tests.helpers.refusals import refused

LAUNCH_S, ROUND_S, MESSAGE_S, BYTE_S = 1e-3, 6e-4, 3e-4, 1.2e-9


def row(rounds: int, sends: int, send_bytes: float, noise: float = 1.0) -> TimedCollective:
    time_s = LAUNCH_S + ROUND_S * rounds + MESSAGE_S * sends + BYTE_S * sends * send_bytes
    return TimedCollective(
        num_nodes=2,
        level="inter_node",
        label=f"{rounds} {sends} {send_bytes}",
        rounds=rounds,
        sends=sends,
        at_once=rounds == 1,
        link_bytes=sends * send_bytes,
        send_bytes=send_bytes,
        nominal_bytes_per_s=None,
        samples_s=time_s * noise * np.array([0.98, 1.0, 1.02]),
    )


ROWS = [row(*shape, size) for shape in ((6, 6), (3, 3), (1, 3)) for size in (256.0, 65536.0, 1e6)]


def test_what_cores_take_is_found_and_is_not_judged() -> None:
    fitted = network.fit_host(ROWS, draws=30)
    found = fitted.table["host"]
    assert isinstance(found, dict)
    seconds = [Duration.parse(found[name]) for name in ("launch", "round", "message", "time_per_byte")]
    assert seconds == pytest.approx([LAUNCH_S, ROUND_S, MESSAGE_S, BYTE_S], rel=0.02)
    assert {"host.launch", "host.round", "host.message", "host.time_per_byte"} == set(fitted.intervals)
    assert checked_residuals([fitted]) == []
    with refused("--in-place: 2 collectives: at least 3"):
        network.fit_host(ROWS[:2], draws=20)


def collective(name: str, group: str, size: int, message: int, seconds: float) -> Series:
    labels: dict[str, str | int | float] = {
        "group": group, "group_size": size, "message_bytes": message, "num_groups": 1, "dtype": "uint8"
    }  # fmt: skip
    return Series(kind="collective", name=name, setup=0, unit="s", labels=labels, values=(seconds,) * 3)


def parts_of(known: MeasurementFile, in_place: MeasurementFile | None = None, draws: int = 20) -> list[FittedPart]:
    alone = sources.Sources(files=[(Path("links.json"), known)])
    there = sources.Sources(files=[(Path("place.json"), in_place)] if in_place else [])
    return [*fit_files.fit_parts(alone, sources.Sources(), there, fit_files.FitOptions(draws=draws))]


def in_place() -> MeasurementFile:
    rows = [collective("all_reduce", "world", 4, size, 5e-3 + size / 4e8) for size in (2**10, 2**20, 2**22)]
    return measurements(tuple(rows), (setup(4, 1, None),))


def test_inside_a_node_is_no_wire_where_cores_are_measured_in_place() -> None:
    sizes = (2**20, 2**22, 2**24)

    def file(inside_bytes_per_s: float, nic_bytes_per_s: float | None) -> MeasurementFile:
        rows = [collective("all_gather", "intra_node", 2, size, size / 2 / inside_bytes_per_s) for size in sizes]
        rows += [collective("all_reduce", "world", 4, size, 1.5 * size / 1e8) for size in sizes]
        return measurements(tuple(rows), (setup(2, 2, nic_bytes_per_s),))

    (alone,) = parts_of(file(1e9, 1.1e8))
    links, cores = parts_of(file(1e9, 1.1e8), file(4e8, None))
    assert alone.table["intra_node"]["measured_on"] == "8 Gbit/s"  # type: ignore[index]
    assert "host" not in alone.table
    assert "intra_node" not in links.table
    assert cores.table.keys() == {"host", "intra_node"}


def test_links_are_fitted_to_their_bandwidth_alone_where_small_messages_are_told_in_place() -> None:
    rows = [collective("all_reduce", "world", 2, size, 1e-3 + size / 1e8) for size in (2**10, 2**20, 2**22, 2**24)]
    known = measurements(tuple(rows), (setup(2, 1, 1.1e8),))
    alone, wires = parts_of(known)[0], parts_of(known, in_place())[0]
    assert alone.table["inter_node"]["latency"] == "0.5 ms"  # type: ignore[index]
    assert wires.table["inter_node"]["latency"] == "0 s"  # type: ignore[index]
    assert wires.table.keys() == {"inter_node"}
    assert set(wires.intervals) == {"inter_node.efficiency"}


def test_a_few_rows_give_an_interval_of_the_bandwidth_and_not_of_its_absence() -> None:
    sent = {"all_reduce": 2**22 / 1e8, "all_gather": 2**21 / 1e8, "all_to_all": 2**21 / 0.97e8}
    rows = [collective(name, "world", 2, 2**22, seconds) for name, seconds in sent.items()]
    links, _ = parts_of(measurements(tuple(rows), (setup(2, 1, 1.1e8),)), in_place(), draws=40)
    assert links.intervals
    assert all(0.9 < low <= 1 <= high < 1.1 for low, high in links.intervals.values())


def beside(name: str, collective: str, seconds: float) -> Series:
    labels: dict[str, str | int | float] = {"model": "m", "batch": 1, "collective": collective, "message_bytes": 8}
    return Series(kind="interference", name=name, setup=0, unit="s", labels=labels, values=(seconds,) * 5)


def pairs(**seconds: tuple[float, ...]) -> MeasurementFile:
    """Return times of backward beside collectives, after those alone."""
    rows = [
        beside(name, collective, one)
        for collective, times in seconds.items()
        for name, one in zip(("backward_beside", "backward_alone"), times, strict=False)
    ]
    return measurements(tuple(rows), (setup(2, 1, 1e8),))


def test_the_slowdown_of_backward_is_the_mean_over_collectives_and_no_speedup() -> None:
    whole = pairs(all_reduce=(1.44, 1.0), all_to_all=(2.0, 2.0))
    fitted = kernels.fit_slowdown(kernels.select_pairs([whole]), draws=50)
    assert fitted.table == {"backward_slowdown": pytest.approx(1.2)}
    low, high = fitted.intervals["backward_slowdown"]
    assert (low * 1.2, high * 1.2) == pytest.approx((1.0, 1.44))
    faster = kernels.select_pairs([pairs(x=(1.0, 2.0))])
    assert kernels.fit_slowdown(faster, draws=20).table == {"backward_slowdown": 1.0}
    with refused("backward of m with x: needs a time without it"):
        kernels.select_pairs([pairs(x=(1.0,))])
